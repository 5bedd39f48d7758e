//! A plain chat client that measures times.
//!
//! Uses streaming chat completions over HTTP without project-specific headers, sends the whole history each time, and
//! never retries: failed requests are counted in the report.

use std::time::{Duration, Instant};

use clawhost_http::SseDecoder;
use futures_util::StreamExt;
use serde_json::{Value, json};

/// A served model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Base URL without `/v1`, for example `http://127.0.0.1:30000`.
    pub url: String,
    /// The `model` field of requests.
    pub model: String,
    /// Bearer token, if required.
    pub api_key: Option<String>,
}

/// Why a request has no usable response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No response, or the connection failed before one began.
    #[error("no response from {url}: {reason}")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The network error.
        reason: String,
    },
    /// The endpoint returned an error status.
    #[error("{url} returned status {status}: {message}")]
    Status {
        /// The requested URL.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The message of the error body, or the body.
        message: String,
    },
    /// The stream ended before the reply was finished.
    #[error("the reply was truncated after {received} bytes: {reason}")]
    Truncated {
        /// Bytes of the reply's text that had arrived.
        received: usize,
        /// How it ended.
        reason: String,
    },
    /// The body is not valid.
    #[error("{url} returned an invalid body, expected {expected}: {excerpt}")]
    InvalidResponse {
        /// The requested URL.
        url: String,
        /// The expected format.
        expected: &'static str,
        /// The beginning of the body.
        excerpt: String,
    },
}

/// A reply as the client received it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The text.
    pub text: String,
    /// `finish_reason` of the reply.
    pub finish: String,
    /// The `x-clawhost-adapter` header, if any.
    pub adapter: Option<String>,
    /// `usage.prompt_tokens`, if any.
    pub prompt_tokens: Option<u64>,
    /// Time from sending the request to the first text.
    pub first_token: Duration,
    /// Time from sending the request to the end of the stream.
    pub total: Duration,
}

/// Parameters of a request besides its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestParams {
    /// The `seed` field.
    pub seed: u64,
    /// The `temperature` field; absent when `None`, so that the endpoint's default applies.
    pub temperature: Option<f32>,
    /// The `max_tokens` field; absent when `None`.
    pub max_tokens: Option<u32>,
}

/// A client of one endpoint. Clones share connections.
#[derive(Debug, Clone)]
pub struct ChatClient {
    endpoint: Endpoint,
    http: reqwest::Client,
    timeout: Duration,
}

impl ChatClient {
    /// A client with a timeout per request.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new(endpoint: Endpoint, timeout: Duration) -> Result<ChatClient, RequestError> {
        let http = clawhost_http::client()
            .build()
            .map_err(|e| connection_error(&endpoint.url, &e))?;
        Ok(ChatClient {
            endpoint,
            http,
            timeout,
        })
    }

    /// The client's endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends `messages` and reads the streamed reply to its end.
    ///
    /// # Errors
    /// [`RequestError`] if there is no complete reply within the timeout.
    pub async fn chat(
        &self,
        messages: &[Value],
        params: RequestParams,
    ) -> Result<Reply, RequestError> {
        let started = Instant::now();
        match tokio::time::timeout(self.timeout, self.exchange(messages, params, started)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(RequestError::Unreachable {
                url: self.endpoint.url.clone(),
                reason: format!("no complete reply within {} s", self.timeout.as_secs()),
            }),
        }
    }

    async fn exchange(
        &self,
        messages: &[Value],
        params: RequestParams,
        started: Instant,
    ) -> Result<Reply, RequestError> {
        let mut body = json!({
            "model": self.endpoint.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
            "seed": params.seed,
        });
        if let Some(temperature) = params.temperature {
            body["temperature"] = temperature.into();
        }
        if let Some(max_tokens) = params.max_tokens {
            body["max_tokens"] = max_tokens.into();
        }
        let url = format!("{}/v1/chat/completions", self.base());
        let mut request = self.http.post(&url).json(&body);
        if let Some(key) = &self.endpoint.api_key {
            request = request.bearer_auth(key);
        }
        let response = request
            .send()
            .await
            .map_err(|e| connection_error(&url, &e))?;
        let response = check_status(&url, response).await?;
        let adapter = response
            .headers()
            .get("x-clawhost-adapter")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let mut stream = response.bytes_stream();
        let mut events = SseDecoder::default();
        let mut reply = ReplyBuilder::default();
        while !reply.done {
            let Some(chunk) = stream.next().await else {
                break;
            };
            let truncated = |reason: String| RequestError::Truncated {
                received: reply.text.len(),
                reason,
            };
            let chunk = chunk.map_err(|error| truncated(error.to_string()))?;
            let payloads = events.push(&chunk);
            for data in payloads.map_err(|reason| truncated(reason.to_owned()))? {
                reply.push(&url, &data, started)?;
            }
        }
        let Some(finish) = reply.finish else {
            return Err(RequestError::Truncated {
                received: reply.text.len(),
                reason: "the stream ended without a finish_reason".into(),
            });
        };
        let total = started.elapsed();
        Ok(Reply {
            text: reply.text,
            finish,
            adapter,
            prompt_tokens: reply.prompt_tokens,
            first_token: reply.first_token.unwrap_or(total),
            total,
        })
    }

    /// The body of `GET /healthz`.
    ///
    /// # Errors
    /// [`RequestError`] if there is none.
    pub async fn health(&self) -> Result<Value, RequestError> {
        let url = format!("{}/healthz", self.base());
        let request = self.http.get(&url).timeout(self.timeout);
        let response = request
            .send()
            .await
            .map_err(|e| connection_error(&url, &e))?;
        let response = check_status(&url, response).await?;
        let text = response
            .text()
            .await
            .map_err(|e| connection_error(&url, &e))?;
        serde_json::from_str(&text).map_err(|_| RequestError::InvalidResponse {
            url,
            expected: "a JSON object",
            excerpt: excerpt(&text),
        })
    }

    fn base(&self) -> &str {
        self.endpoint.url.trim_end_matches('/')
    }
}

async fn check_status(
    url: &str,
    response: reqwest::Response,
) -> Result<reqwest::Response, RequestError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let message = match response.text().await {
        Ok(body) => clawhost_http::error_message(&body),
        Err(error) => format!("(its message cannot be read: {error})"),
    };
    Err(RequestError::Status {
        url: url.to_owned(),
        status: status.as_u16(),
        message,
    })
}

fn connection_error(url: &str, error: &reqwest::Error) -> RequestError {
    RequestError::Unreachable {
        url: url.to_owned(),
        reason: clawhost_http::root_cause(error),
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(200).collect()
}

/// A streamed reply being assembled.
#[derive(Default)]
struct ReplyBuilder {
    text: String,
    finish: Option<String>,
    prompt_tokens: Option<u64>,
    first_token: Option<Duration>,
    done: bool,
}

impl ReplyBuilder {
    fn push(&mut self, url: &str, data: &str, started: Instant) -> Result<(), RequestError> {
        if data == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Value =
            serde_json::from_str(data).map_err(|_| RequestError::InvalidResponse {
                url: url.to_owned(),
                expected: "a chunk of a chat completion",
                excerpt: excerpt(data),
            })?;
        if let Some(message) = chunk.pointer("/error/message").and_then(Value::as_str) {
            return Err(RequestError::Truncated {
                received: self.text.len(),
                reason: message.to_owned(),
            });
        }
        let prompt_tokens = chunk
            .pointer("/usage/prompt_tokens")
            .and_then(Value::as_u64);
        self.prompt_tokens = prompt_tokens.or(self.prompt_tokens);
        let text = chunk.pointer("/choices/0/delta/content");
        if let Some(text) = text.and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.first_token.get_or_insert_with(|| started.elapsed());
            self.text.push_str(text);
        }
        let finish = chunk.pointer("/choices/0/finish_reason");
        if let Some(finish) = finish.and_then(Value::as_str) {
            self.finish = Some(finish.to_owned());
        }
        Ok(())
    }
}
