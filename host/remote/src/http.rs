//! The HTTP client: requests, timeouts and errors.
//!
//! HTTP/1.1, no redirects, no proxy from the environment.

use std::time::Duration;

use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use crate::error::RemoteError;
use clawhost_config::{RemoteConfig, Secret};

/// Why a call to the server failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum CallError {
    /// No connection, or it was closed.
    #[error("{0}")]
    Unreachable(String),
    /// No response in time.
    #[error("{what} took longer than {limit:?}; raise {key}")]
    Timeout {
        what: &'static str,
        limit: Duration,
        key: &'static str,
    },
    /// The server is overloaded (429).
    #[error("it is busy: {message}")]
    Busy { message: String, retry_after_s: u64 },
    /// An error status.
    #[error("it returned status {status}: {message}")]
    Status { status: u16, message: String },
    /// The response does not have the expected form.
    #[error("its response is malformed: {0}")]
    Malformed(String),
    /// The response has no token ids.
    #[error("its response has no token ids")]
    NoIds,
    /// The response has no log-probs.
    #[error("its response has no log-probs")]
    NoLogprobs,
}

impl CallError {
    /// Whether the server may be down.
    pub(crate) fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Timeout { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Whether the server may not have the adapter (any more).
    pub(crate) fn may_lack_adapter(&self) -> bool {
        matches!(
            self,
            Self::Status {
                status: 400 | 404,
                ..
            }
        )
    }

    /// Converts to the error of [`crate::HttpBackend::connect`].
    pub(crate) fn into_remote_error(self, options: &RemoteConfig) -> RemoteError {
        let (url, kind) = (options.url.clone(), options.backend);
        match self {
            Self::NoIds => RemoteError::NoIds { url, kind },
            Self::NoLogprobs => RemoteError::NoLogprobs { url, kind },
            other => RemoteError::Unusable {
                url,
                reason: other.to_string(),
            },
        }
    }
}

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    client: Client,
    base: Url,
    key: Option<String>,
    accept_timeout: Duration,
    idle_timeout: Duration,
}

impl HttpClient {
    pub(crate) fn new(options: &RemoteConfig) -> Result<Self, RemoteError> {
        let invalid = |problem: &str| RemoteError::InvalidUrl {
            url: options.url.clone(),
            problem: problem.to_owned(),
        };
        let base = Url::parse(&options.url).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(invalid("only http:// and https:// are supported"));
        }
        if base.path() != "/" || base.query().is_some() {
            return Err(invalid(
                "give the base address without a path, such as http://127.0.0.1:8000",
            ));
        }
        let key = options.api_key.as_ref().map(Secret::read).transpose();
        let key = key.map_err(|error| RemoteError::Unusable {
            url: options.url.clone(),
            reason: format!("engine.remote.api_key {error}"),
        })?;
        let client = clawhost_http::client()
            .connect_timeout(options.connect_timeout)
            .build()
            .map_err(|error| invalid(&error.to_string()))?;
        Ok(Self {
            client,
            base,
            key,
            accept_timeout: options.response_timeout,
            idle_timeout: options.token_timeout,
        })
    }

    /// Sends a request; returns once the server has accepted it.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Response, CallError> {
        self.send(
            path,
            Some(body),
            self.accept_timeout,
            "engine.remote.response_timeout",
        )
        .await
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn call(
        &self,
        path: &str,
        body: &Value,
        limit: Duration,
        key: &'static str,
    ) -> Result<String, CallError> {
        let response = self.send(path, Some(body), limit, key).await?;
        let text = tokio::time::timeout(limit, response.text()).await;
        let timeout = CallError::Timeout {
            what: "the response",
            limit,
            key,
        };
        text.map_err(|_| timeout)?
            .map_err(|error| connection_error(&error))
    }

    /// Checks the server's health endpoint.
    pub(crate) async fn health(&self) -> Result<(), CallError> {
        let key = "engine.remote.response_timeout";
        self.send("health", None, self.accept_timeout, key)
            .await
            .map(drop)
    }

    /// The next bytes of a streamed response; `None` at its end.
    pub(crate) async fn next(&self, response: &mut Response) -> Result<Option<Vec<u8>>, CallError> {
        match tokio::time::timeout(self.idle_timeout, response.chunk()).await {
            Ok(Ok(bytes)) => Ok(bytes.map(|bytes| bytes.to_vec())),
            Ok(Err(error)) => Err(connection_error(&error)),
            Err(_) => Err(CallError::Timeout {
                what: "the next token",
                limit: self.idle_timeout,
                key: "engine.remote.token_timeout",
            }),
        }
    }

    async fn send(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
        key: &'static str,
    ) -> Result<Response, CallError> {
        let url = self
            .base
            .join(path)
            .map_err(|error| CallError::Unreachable(error.to_string()))?;
        let mut request = match body {
            Some(body) => self.client.post(url).json(body),
            None => self.client.get(url),
        };
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = tokio::time::timeout(limit, request.send()).await;
        let timeout = CallError::Timeout {
            what: "accepting a request",
            limit,
            key,
        };
        let response = response
            .map_err(|_| timeout)?
            .map_err(|error| connection_error(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after_s = response
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(1);
        let message = match tokio::time::timeout(limit, response.text()).await {
            Ok(Ok(body)) => clawhost_http::error_message(&body),
            Ok(Err(error)) => format!("(its message cannot be read: {error})"),
            Err(_) => "(its message did not arrive in time)".to_owned(),
        };
        Err(if status == StatusCode::TOO_MANY_REQUESTS {
            CallError::Busy {
                message,
                retry_after_s,
            }
        } else {
            CallError::Status {
                status: status.as_u16(),
                message,
            }
        })
    }
}

fn connection_error(error: &reqwest::Error) -> CallError {
    let cause = clawhost_http::root_cause(error);
    CallError::Unreachable(format!("the connection failed: {cause}"))
}
