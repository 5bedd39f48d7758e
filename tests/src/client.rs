//! An OpenAI-compatible HTTP client.

use clawhost_journal::TurnId;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

/// A system message.
pub fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

/// A user message.
pub fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// An assistant message.
pub fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// A client of the server at this address.
    pub fn new(url: &str) -> Self {
        Self {
            http: clawhost_http::client().build().unwrap(),
            url: url.to_owned(),
        }
    }

    /// A chat request with these messages.
    pub fn chat(&self, messages: &[Value]) -> ChatRequest {
        ChatRequest {
            request: self.http.post(format!("{}/v1/chat/completions", self.url)),
            body: json!({"messages": messages, "max_tokens": 120}),
        }
    }

    /// Sends a POST request with arbitrary bytes.
    pub async fn post_bytes(&self, path: &str, body: Vec<u8>) -> ApiResponse {
        let request = self.http.post(format!("{}{path}", self.url)).body(body);
        let request = request.header("content-type", "application/json");
        ApiResponse::of(request.send().await.unwrap())
            .await
            .unwrap()
    }

    /// Sends a POST request with JSON.
    pub async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.post_bytes(path, body.to_string().into_bytes()).await
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str) -> ApiResponse {
        let request = self.http.get(format!("{}{path}", self.url));
        ApiResponse::of(request.send().await.unwrap())
            .await
            .unwrap()
    }
}

/// Builder of a chat request.
pub struct ChatRequest {
    request: RequestBuilder,
    body: Value,
}

impl ChatRequest {
    /// Sets fields of the body; null removes one.
    pub fn with(mut self, fields: Value) -> Self {
        for (name, value) in fields.as_object().unwrap() {
            self.body[name] = value.clone();
        }
        self
    }

    /// Sets a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Sends the request and waits for the complete response.
    pub async fn send(self) -> ApiResponse {
        self.try_send().await.unwrap()
    }

    /// As [`ChatRequest::send`], for servers that may go away.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn try_send(self) -> reqwest::Result<ApiResponse> {
        ApiResponse::of(self.request.json(&self.body).send().await?).await
    }

    /// Sends the request with `stream: true`; returns once the response head arrives.
    pub async fn stream(self) -> ChatStream {
        self.try_stream().await.unwrap()
    }

    /// As [`ChatRequest::stream`], for servers that may go away.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn try_stream(mut self) -> reqwest::Result<ChatStream> {
        self.body["stream"] = true.into();
        let response = self.request.json(&self.body).send().await?;
        Ok(ChatStream::of(response))
    }
}

/// A complete response.
#[derive(Debug)]
pub struct ApiResponse {
    /// HTTP status.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// The body; null if it is not JSON.
    pub body: Value,
}

impl ApiResponse {
    async fn of(response: Response) -> reqwest::Result<Self> {
        Ok(Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: serde_json::from_slice(&response.bytes().await?).unwrap_or_default(),
        })
    }

    /// The body of a response that must have status 200.
    pub fn ok(&self) -> &Value {
        assert_eq!(self.status, 200, "{}", self.body);
        &self.body
    }

    /// The assistant's text.
    pub fn text(&self) -> &str {
        self.ok()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
    }

    /// The turn of the first choice.
    pub fn turn(&self) -> TurnId {
        turns(&self.headers)[0]
    }

    /// The turns of all choices.
    pub fn turns(&self) -> Vec<TurnId> {
        turns(&self.headers)
    }

    /// The session.
    pub fn session(&self) -> String {
        header(&self.headers, "x-clawhost-session").to_owned()
    }

    /// The adapter version.
    pub fn version(&self) -> u64 {
        version(&self.headers)
    }

    /// Message and code of a response that must be an error in OpenAI's format.
    pub fn error(&self, status: u16) -> (&str, &str) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = self.body["error"].as_object().expect("an error object");
        assert!(error["type"].is_string() && error.contains_key("param"));
        let text = |name: &str| error[name].as_str().unwrap_or("");
        assert!(!text("message").is_empty());
        (text("message"), text("code"))
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers
        .get(name)
        .unwrap_or_else(|| panic!("no header {name}"));
    value.to_str().unwrap()
}

fn turns(headers: &HeaderMap) -> Vec<TurnId> {
    header(headers, "x-clawhost-turn")
        .split(',')
        .map(|turn| turn.parse().unwrap())
        .collect()
}

fn version(headers: &HeaderMap) -> u64 {
    let (version, digest) = header(headers, "x-clawhost-adapter")
        .split_once(':')
        .expect("version and digest");
    assert!(!digest.is_empty());
    version.parse().unwrap()
}

/// A streaming reply.
pub struct ChatStream {
    /// HTTP status.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    unread: Vec<u8>,
    done: bool,
    /// What the chunks said that [`ChatStream::next_text`] passed over: of a reply without text also its end.
    passed_over: StreamedReply,
}

/// A complete streamed reply.
#[derive(Debug, Default)]
pub struct StreamedReply {
    /// The assistant's text.
    pub text: String,
    /// Finish reason; `None` if no chunk had one.
    pub finish: Option<String>,
    /// Number of chunks with text.
    pub text_chunks: usize,
    /// Whether the stream ended with `[DONE]`.
    pub done: bool,
    /// Errors sent as events.
    pub errors: Vec<Value>,
    /// Tool calls: name and arguments.
    pub calls: Vec<(String, String)>,
}

impl ChatStream {
    fn of(response: Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            bytes: response
                .bytes_stream()
                .map(|chunk| chunk.map(|bytes| bytes.to_vec()))
                .boxed(),
            unread: Vec::new(),
            done: false,
            passed_over: StreamedReply::default(),
        }
    }

    /// The turn of the first choice.
    pub fn turn(&self) -> TurnId {
        turns(&self.headers)[0]
    }

    /// The session.
    pub fn session(&self) -> String {
        header(&self.headers, "x-clawhost-session").to_owned()
    }

    /// The adapter version.
    pub fn version(&self) -> u64 {
        version(&self.headers)
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn next(&mut self) -> reqwest::Result<Option<Value>> {
        loop {
            let end = self.unread.windows(2).position(|pair| pair == b"\n\n");
            if let Some(end) = end {
                let event: Vec<u8> = self.unread.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                match event.lines().find_map(|line| line.strip_prefix("data: ")) {
                    Some("[DONE]") => self.done = true,
                    Some(data) => return Ok(Some(serde_json::from_str(data).unwrap())),
                    // A keep-alive comment.
                    None => {}
                }
                continue;
            }
            match self.bytes.next().await {
                Some(chunk) => self.unread.extend(chunk?),
                None => return Ok(None),
            }
        }
    }

    /// Reads until a chunk has text and returns it; `None` at the end.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn next_text(&mut self) -> reqwest::Result<Option<String>> {
        while let Some(chunk) = self.next().await? {
            match chunk["choices"][0]["delta"]["content"].as_str() {
                None | Some("") => self.passed_over.apply(&chunk),
                Some(text) => return Ok(Some(text.to_owned())),
            }
        }
        Ok(None)
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn rest(self) -> reqwest::Result<StreamedReply> {
        self.rest_with(|_| {}).await
    }

    /// As [`ChatStream::rest`]; calls `each` with every chunk.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn rest_with(
        mut self,
        mut each: impl FnMut(&Value),
    ) -> reqwest::Result<StreamedReply> {
        let mut all = std::mem::take(&mut self.passed_over);
        while let Some(chunk) = self.next().await? {
            each(&chunk);
            all.apply(&chunk);
        }
        all.done = self.done;
        Ok(all)
    }
}

impl StreamedReply {
    fn apply(&mut self, chunk: &Value) {
        if chunk.get("error").is_some() {
            self.errors.push(chunk.clone());
            return;
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let text = delta["content"].as_str().unwrap_or("");
        self.text_chunks += usize::from(!text.is_empty());
        self.text.push_str(text);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if let Some(name) = call["function"]["name"].as_str() {
                self.calls.push((name.to_owned(), String::new()));
            }
            let arguments = call["function"]["arguments"].as_str().unwrap_or("");
            self.calls.last_mut().unwrap().1.push_str(arguments);
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
    }
}

/// A conversation: every request sends the whole history.
pub struct Conversation {
    client: Client,
    /// The history.
    pub messages: Vec<Value>,
    fields: Value,
}

impl Conversation {
    /// An empty conversation.
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            messages: Vec::new(),
            fields: json!({}),
        }
    }

    /// Fields of every request.
    pub fn with(mut self, fields: Value) -> Self {
        self.fields = fields;
        self
    }

    /// The request for the next user message.
    pub fn request(&self, text: &str) -> ChatRequest {
        let mut messages = self.messages.clone();
        messages.push(user(text));
        self.client.chat(&messages).with(self.fields.clone())
    }

    /// Adds a user message and its reply to the history.
    pub fn record(&mut self, text: &str, reply: &str) {
        self.messages.push(user(text));
        self.messages.push(assistant(reply));
    }

    /// Sends a user message; the response must have status 200.
    pub async fn send_message(&mut self, text: &str) -> ApiResponse {
        let answer = self.request(text).send().await;
        self.record(text, answer.text());
        answer
    }

    /// As [`Conversation::send_message`] with streaming; returns turn and reply.
    pub async fn send_message_streaming(&mut self, text: &str) -> (TurnId, StreamedReply) {
        let stream = self.request(text).stream().await;
        assert_eq!(stream.status, 200);
        let turn = stream.turn();
        let reply = stream.rest().await.unwrap();
        assert!(reply.done && reply.errors.is_empty(), "{reply:?}");
        self.record(text, &reply.text);
        (turn, reply)
    }
}
