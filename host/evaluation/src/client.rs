//! A plain chat client: what any user's program does, and its stop-watch.
//!
//! It speaks streaming chat completions over HTTP with no header that only this project knows, sends
//! the whole history each time, and never retries: a request that failed is a finding, and the
//! report counts it.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

/// Where a model is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The base address without `/v1`, for example `http://127.0.0.1:30000`.
    pub url: String,
    /// The `model` field of requests.
    pub model: String,
    /// A bearer key, where the endpoint asks for one.
    pub api_key: Option<String>,
}

/// Why a request has no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nothing answered, or the connection broke before an answer began.
    #[error("no answer from {url}: {reason}")]
    Unreachable {
        /// The address asked.
        url: String,
        /// What the network said.
        reason: String,
    },
    /// The endpoint answered with an error.
    #[error("{url} answered {status}: {message}")]
    Refused {
        /// The address asked.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The message of the error body, or the body.
        message: String,
    },
    /// The stream ended before the reply was finished.
    #[error("the reply broke off after {received} bytes: {reason}")]
    Cut {
        /// How much of the reply's text had arrived.
        received: usize,
        /// How it ended.
        reason: String,
    },
    /// The body is not what the protocol says.
    #[error("{url} sent what is not {expected}: {excerpt}")]
    Unreadable {
        /// The address asked.
        url: String,
        /// What should have come.
        expected: &'static str,
        /// The beginning of what came.
        excerpt: String,
    },
}

/// A reply as the client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The text.
    pub text: String,
    /// `finish_reason` as sent.
    pub finish: String,
    /// The `x-clawhost-adapter` header, where there is one.
    pub adapter: Option<String>,
    /// From sending the request to the first text of the reply.
    pub first_token: Duration,
    /// From sending the request to the end of the stream.
    pub total: Duration,
}

/// What one request asks besides its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Asking {
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
    /// A client that gives up on a request after `timeout`.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub fn new(endpoint: Endpoint, timeout: Duration) -> Result<ChatClient, RequestError> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .build()
            .map_err(|e| unreachable(&endpoint.url, &e))?;
        Ok(ChatClient {
            endpoint,
            http,
            timeout,
        })
    }

    /// The endpoint this client talks to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends `messages` and reads the streamed reply to its end.
    ///
    /// # Errors
    /// [`RequestError`] when there is no finished reply within the time-out.
    pub async fn chat(&self, messages: &[Value], asking: Asking) -> Result<Reply, RequestError> {
        let begun = Instant::now();
        match tokio::time::timeout(self.timeout, self.exchange(messages, asking, begun)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(RequestError::Unreachable {
                url: self.endpoint.url.clone(),
                reason: format!("no finished reply within {} s", self.timeout.as_secs()),
            }),
        }
    }

    async fn exchange(
        &self,
        messages: &[Value],
        asking: Asking,
        begun: Instant,
    ) -> Result<Reply, RequestError> {
        let mut body = json!({
            "model": self.endpoint.model,
            "messages": messages,
            "stream": true,
            "seed": asking.seed,
        });
        if let Some(fields) = body.as_object_mut() {
            if let Some(temperature) = asking.temperature {
                fields.insert("temperature".into(), json!(temperature));
            }
            if let Some(max_tokens) = asking.max_tokens {
                fields.insert("max_tokens".into(), json!(max_tokens));
            }
        }
        let url = format!("{}/v1/chat/completions", self.base());
        let mut request = self.http.post(&url).json(&body);
        if let Some(key) = &self.endpoint.api_key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.map_err(|e| unreachable(&url, &e))?;
        let response = accepted(&url, response).await?;
        let adapter = response
            .headers()
            .get("x-clawhost-adapter")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let mut stream = response.bytes_stream();
        let mut events = Events::default();
        let mut reading = Reading::default();
        while !reading.done {
            let Some(chunk) = stream.next().await else {
                break;
            };
            let chunk = chunk.map_err(|e| RequestError::Cut {
                received: reading.text.len(),
                reason: e.to_string(),
            })?;
            for data in events.push(&chunk) {
                reading.take(&url, &data, begun)?;
            }
        }
        let Some(finish) = reading.finish else {
            return Err(RequestError::Cut {
                received: reading.text.len(),
                reason: "the stream ended without a finish_reason".into(),
            });
        };
        let total = begun.elapsed();
        Ok(Reply {
            text: reading.text,
            finish,
            adapter,
            first_token: reading.first_token.unwrap_or(total),
            total,
        })
    }

    /// The body of `GET /healthz`.
    ///
    /// # Errors
    /// [`RequestError`] when there is none.
    pub async fn health(&self) -> Result<Value, RequestError> {
        let url = format!("{}/healthz", self.base());
        let request = self.http.get(&url).timeout(self.timeout);
        let response = request.send().await.map_err(|e| unreachable(&url, &e))?;
        let response = accepted(&url, response).await?;
        let text = response.text().await.map_err(|e| unreachable(&url, &e))?;
        serde_json::from_str(&text).map_err(|_| RequestError::Unreadable {
            url,
            expected: "a JSON object",
            excerpt: excerpt(&text),
        })
    }

    fn base(&self) -> &str {
        self.endpoint.url.trim_end_matches('/')
    }
}

async fn accepted(
    url: &str,
    response: reqwest::Response,
) -> Result<reqwest::Response, RequestError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = response.text().await.unwrap_or_default();
    let message = serde_json::from_str::<Value>(&body)
        .ok()
        .and_then(|v| v.pointer("/error/message")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| excerpt(&body));
    Err(RequestError::Refused {
        url: url.to_owned(),
        status: status.as_u16(),
        message,
    })
}

fn unreachable(url: &str, error: &reqwest::Error) -> RequestError {
    let mut reason = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        reason = inner.to_string();
        cause = inner.source();
    }
    RequestError::Unreachable {
        url: url.to_owned(),
        reason,
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Splits a body into the data of its server-sent events.
#[derive(Default)]
struct Events {
    pending: Vec<u8>,
}

impl Events {
    /// Takes a piece of the body, returns the data lines that it completed.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.pending.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                found.push(data.trim_start().to_owned());
            }
        }
        found
    }
}

/// A reply being read.
#[derive(Default)]
struct Reading {
    text: String,
    finish: Option<String>,
    first_token: Option<Duration>,
    done: bool,
}

impl Reading {
    fn take(&mut self, url: &str, data: &str, begun: Instant) -> Result<(), RequestError> {
        if data == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Value = serde_json::from_str(data).map_err(|_| RequestError::Unreadable {
            url: url.to_owned(),
            expected: "a chunk of a chat completion",
            excerpt: excerpt(data),
        })?;
        if let Some(message) = chunk.pointer("/error/message").and_then(Value::as_str) {
            return Err(RequestError::Cut {
                received: self.text.len(),
                reason: message.to_owned(),
            });
        }
        let text = chunk.pointer("/choices/0/delta/content");
        if let Some(text) = text.and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.first_token.get_or_insert_with(|| begun.elapsed());
            self.text.push_str(text);
        }
        let finish = chunk.pointer("/choices/0/finish_reason");
        if let Some(finish) = finish.and_then(Value::as_str) {
            self.finish = Some(finish.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_any_cut() {
        let body = "data: {\"a\":\"ü\"}\r\n\r\n: ping\n\ndata:[DONE]\n\n".as_bytes();
        for cut in 0..body.len() {
            let mut events = Events::default();
            let mut found = events.push(&body[..cut]);
            found.extend(events.push(&body[cut..]));
            assert_eq!(found, vec!["{\"a\":\"ü\"}", "[DONE]"], "cut at {cut}");
        }
    }
}
