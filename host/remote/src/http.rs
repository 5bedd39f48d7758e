//! One server over HTTP: what is sent, how long is waited, and what went wrong in words.
//!
//! Plain HTTP/1.1, no redirects, no proxy from the environment: the server is a neighbour, not the Internet.

use std::time::Duration;

use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use crate::error::RemoteError;
use crate::options::RemoteOptions;

/// Longest excerpt of what a server said.
const EXCERPT: usize = 300;

/// What went wrong with an exchange.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Trouble {
    /// Nobody is there, or the connection was cut.
    #[error("{0}")]
    Gone(String),
    /// It did not answer in time.
    #[error("{what} took longer than {limit:?}; {key} allows more")]
    Slow {
        what: &'static str,
        limit: Duration,
        key: &'static str,
    },
    /// It has too much to do.
    #[error("it is busy: {said}")]
    Busy { said: String, retry_after_s: u64 },
    /// It refused.
    #[error("it answered {status}: {said}")]
    Refused { status: u16, said: String },
    /// It answered something else than its form.
    #[error("its answer cannot be read: {0}")]
    Garbled(String),
    /// Its answer has no ids where they belong.
    #[error("its answer has no token ids")]
    NoIds,
    /// Its answer has no log-probs where they belong.
    #[error("its answer has no log-probs")]
    NoLogprobs,
}

impl Trouble {
    /// Whether the server as a whole is in doubt.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Gone(_) | Self::Slow { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Whether it may be that the server does not know the adapter (any more).
    pub(crate) fn may_lack_adapter(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 400 | 404,
                ..
            }
        )
    }

    /// As the reason why a server is refused at the start.
    pub(crate) fn at_start(self, options: &RemoteOptions) -> RemoteError {
        let (url, kind) = (options.url.clone(), options.kind);
        match self {
            Self::NoIds => RemoteError::NoIds { url, kind },
            Self::NoLogprobs => RemoteError::NoLogprobs { url, kind },
            other => RemoteError::Trouble {
                url,
                reason: other.to_string(),
            },
        }
    }
}

/// A server.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    client: Client,
    base: Url,
    key: Option<String>,
    accept: Duration,
    idle: Duration,
}

impl Server {
    pub(crate) fn new(options: &RemoteOptions) -> Result<Self, RemoteError> {
        let address = |problem: &str| RemoteError::Address {
            url: options.url.clone(),
            problem: problem.to_owned(),
        };
        let base = Url::parse(&options.url).map_err(|error| address(&error.to_string()))?;
        if base.scheme() != "http" {
            return Err(address(
                "only http:// is spoken here; put a tunnel or a proxy that speaks TLS between",
            ));
        }
        if base.path() != "/" || base.query().is_some() {
            return Err(address(
                "give the base address without a path, such as http://127.0.0.1:8000",
            ));
        }
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(options.connect)
            .build()
            .map_err(|error| address(&error.to_string()))?;
        Ok(Self {
            client,
            base,
            key: options.key.clone(),
            accept: options.accept,
            idle: options.idle,
        })
    }

    /// Sends a request; returns once the server has accepted it.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Response, Trouble> {
        self.send(
            path,
            Some(body),
            self.accept,
            "engine.remote.accept_seconds",
        )
        .await
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        path: &str,
        body: &Value,
        limit: Duration,
        key: &'static str,
    ) -> Result<String, Trouble> {
        let answer = self.send(path, Some(body), limit, key).await?;
        let text = tokio::time::timeout(limit, answer.text()).await;
        let slow = Trouble::Slow {
            what: "the answer",
            limit,
            key,
        };
        text.map_err(|_| slow)?.map_err(|error| gone(&error))
    }

    /// Whether it says that it is well.
    pub(crate) async fn health(&self) -> Result<(), Trouble> {
        let key = "engine.remote.accept_seconds";
        self.send("health", None, self.accept, key).await.map(drop)
    }

    /// The next bytes of a streamed answer; none at its end.
    pub(crate) async fn next(&self, answer: &mut Response) -> Result<Option<Vec<u8>>, Trouble> {
        match tokio::time::timeout(self.idle, answer.chunk()).await {
            Ok(Ok(bytes)) => Ok(bytes.map(|bytes| bytes.to_vec())),
            Ok(Err(error)) => Err(gone(&error)),
            Err(_) => Err(Trouble::Slow {
                what: "the next token",
                limit: self.idle,
                key: "engine.remote.idle_seconds",
            }),
        }
    }

    async fn send(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
        key: &'static str,
    ) -> Result<Response, Trouble> {
        let url = self
            .base
            .join(path)
            .map_err(|error| Trouble::Gone(error.to_string()))?;
        let mut request = match body {
            Some(body) => self.client.post(url).json(body),
            None => self.client.get(url),
        };
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let answer = tokio::time::timeout(limit, request.send()).await;
        let slow = Trouble::Slow {
            what: "accepting a request",
            limit,
            key,
        };
        let answer = answer.map_err(|_| slow)?.map_err(|error| gone(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let retry_after_s = answer
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(1);
        let body = tokio::time::timeout(limit, answer.text()).await;
        let said = excerpt(&body.ok().and_then(Result::ok).unwrap_or_default());
        Err(if status == StatusCode::TOO_MANY_REQUESTS {
            Trouble::Busy {
                said,
                retry_after_s,
            }
        } else {
            Trouble::Refused {
                status: status.as_u16(),
                said,
            }
        })
    }
}

/// The innermost cause says most: that of the outermost is "error sending request".
fn gone(error: &reqwest::Error) -> Trouble {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Trouble::Gone(format!("the connection failed: {cause}"))
}

/// What a server said, short enough for a message: the text of an error object where there is one.
pub(crate) fn excerpt(text: &str) -> String {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let message = value.as_ref().and_then(|value| {
        let places = ["/error/message", "/message", "/error_message", "/detail"];
        places.iter().find_map(|at| value.pointer(at)?.as_str())
    });
    let text = message.unwrap_or(text).trim();
    text.chars().take(EXCERPT).collect()
}
