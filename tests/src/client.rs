//! Chat over HTTP, as any client of the OpenAI API does it.

use clawhost_journal::TurnId;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

/// A message of the system.
pub fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

/// A message of the user.
pub fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// A message of the assistant.
pub fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// Somebody who talks to one server.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// A client of the server at this address.
    pub fn new(url: &str) -> Self {
        Self {
            http: reqwest::Client::new(),
            url: url.to_owned(),
        }
    }

    /// A chat request with these messages.
    pub fn chat(&self, messages: &[Value]) -> Chat {
        Chat {
            request: self.http.post(format!("{}/v1/chat/completions", self.url)),
            body: json!({"messages": messages, "max_tokens": 120}),
        }
    }

    /// A POST of bytes that may be anything.
    pub async fn post_bytes(&self, path: &str, body: Vec<u8>) -> Answer {
        let request = self.http.post(format!("{}{path}", self.url)).body(body);
        let request = request.header("content-type", "application/json");
        Answer::of(request.send().await.unwrap()).await.unwrap()
    }

    /// A POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().into_bytes()).await
    }

    /// A GET.
    pub async fn get(&self, path: &str) -> Answer {
        let request = self.http.get(format!("{}{path}", self.url));
        Answer::of(request.send().await.unwrap()).await.unwrap()
    }
}

/// A chat request that is being put together.
pub struct Chat {
    request: RequestBuilder,
    body: Value,
}

impl Chat {
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

    /// Sends it and waits for the whole reply.
    pub async fn send(self) -> Answer {
        self.try_send().await.unwrap()
    }

    /// As [`Chat::send`], for servers that may go away.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn try_send(self) -> reqwest::Result<Answer> {
        Answer::of(self.request.json(&self.body).send().await?).await
    }

    /// Sends it as a stream; returns when the head of the response is there.
    pub async fn stream(self) -> Stream {
        self.try_stream().await.unwrap()
    }

    /// As [`Chat::stream`], for servers that may go away.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn try_stream(mut self) -> reqwest::Result<Stream> {
        self.body["stream"] = true.into();
        let response = self.request.json(&self.body).send().await?;
        Ok(Stream::of(response))
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// The body; null when it is not JSON.
    pub body: Value,
}

impl Answer {
    async fn of(response: Response) -> reqwest::Result<Self> {
        Ok(Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: serde_json::from_slice(&response.bytes().await?).unwrap_or_default(),
        })
    }

    /// The body of an answer that must be good.
    pub fn ok(&self) -> &Value {
        assert_eq!(self.status, 200, "{}", self.body);
        &self.body
    }

    /// What the assistant said.
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

    /// The version that answered.
    pub fn version(&self) -> u64 {
        version(&self.headers)
    }

    /// The error of an answer that must be one of OpenAI's shape: its message and its code.
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

/// A reply that arrives piece by piece.
pub struct Stream {
    /// HTTP status.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    unread: Vec<u8>,
    done: bool,
}

/// A streamed reply, put together.
#[derive(Debug, Default)]
pub struct Streamed {
    /// What the assistant said.
    pub text: String,
    /// Why it ended; none when no chunk said so.
    pub finish: Option<String>,
    /// Chunks that carried text.
    pub pieces: usize,
    /// Whether the stream ended with `[DONE]`.
    pub done: bool,
    /// Errors that came as events.
    pub errors: Vec<Value>,
    /// Tool calls: name and arguments.
    pub calls: Vec<(String, String)>,
}

impl Stream {
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

    /// The version that answers.
    pub fn version(&self) -> u64 {
        version(&self.headers)
    }

    /// The next chunk; none at the end.
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
                    // A comment that keeps the connection alive.
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

    /// Reads until a chunk carries text and returns it; none when there is no more.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn next_text(&mut self) -> reqwest::Result<Option<String>> {
        while let Some(chunk) = self.next().await? {
            match chunk["choices"][0]["delta"]["content"].as_str() {
                None | Some("") => {}
                Some(text) => return Ok(Some(text.to_owned())),
            }
        }
        Ok(None)
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn rest(self) -> reqwest::Result<Streamed> {
        self.rest_with(|_| {}).await
    }

    /// As [`Stream::rest`]; `each` sees every chunk as it comes.
    ///
    /// # Errors
    /// The connection broke off.
    pub async fn rest_with(mut self, mut each: impl FnMut(&Value)) -> reqwest::Result<Streamed> {
        let mut all = Streamed::default();
        while let Some(chunk) = self.next().await? {
            each(&chunk);
            all.take(&chunk);
        }
        all.done = self.done;
        Ok(all)
    }
}

impl Streamed {
    fn take(&mut self, chunk: &Value) {
        if chunk.get("error").is_some() {
            self.errors.push(chunk.clone());
            return;
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let text = delta["content"].as_str().unwrap_or("");
        self.pieces += usize::from(!text.is_empty());
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

/// A conversation: everything that was said is sent again each time.
pub struct Talk {
    client: Client,
    /// What was said so far.
    pub messages: Vec<Value>,
    fields: Value,
}

impl Talk {
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

    /// The request that would say this.
    pub fn request(&self, text: &str) -> Chat {
        let mut messages = self.messages.clone();
        messages.push(user(text));
        self.client.chat(&messages).with(self.fields.clone())
    }

    /// Notes what was said and answered.
    pub fn note(&mut self, text: &str, reply: &str) {
        self.messages.push(user(text));
        self.messages.push(assistant(reply));
    }

    /// Says something and hears the reply, which must be good.
    pub async fn say(&mut self, text: &str) -> Answer {
        let answer = self.request(text).send().await;
        self.note(text, answer.text());
        answer
    }

    /// The same as a stream; returns turn and reply.
    pub async fn say_streaming(&mut self, text: &str) -> (TurnId, Streamed) {
        let stream = self.request(text).stream().await;
        assert_eq!(stream.status, 200);
        let turn = stream.turn();
        let reply = stream.rest().await.unwrap();
        assert!(reply.done && reply.errors.is_empty(), "{reply:?}");
        self.note(text, &reply.text);
        (turn, reply)
    }
}
