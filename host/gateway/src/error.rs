//! API errors: the HTTP status and the error object in OpenAI's or Anthropic's format.
//!
//! Every error response of this crate is an [`ApiError`], so that the OpenAI and Anthropic SDKs can parse all of them.
//! The message says what is wrong and what to do; internal details go to the log only.

use std::any::Any;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An error response. OpenAI's format is `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    /// The message in Anthropic's format, where its clients match on another text. `None`: `message`.
    anthropic_message: Option<Box<str>>,
    retry_after_s: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            anthropic_message: None,
            retry_after_s: None,
        }
    }

    /// 400: the request is invalid; a retry fails the same way.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for a field with an invalid value.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message)
            .param(param)
            .code("invalid_value")
    }

    /// 400 for a field that this server does not support. Ignoring it would return something else than the client
    /// requested.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message)
            .param(param)
            .code("unsupported_parameter")
    }

    /// 400: a prompt of `prompt` tokens leaves no room for a reply in a context of `max` tokens. Clients match on this
    /// exact text (OpenAI's and Anthropic's differ) to decide whether to compact the conversation and retry. `hint` says
    /// what an operator can do, if anything.
    pub(crate) fn context_exceeded(prompt: usize, max: usize, hint: Option<&str>) -> Self {
        let hint = hint.map(|hint| format!(" {hint}")).unwrap_or_default();
        let requested = prompt + 1;
        let mut error = Self::bad_request(format!(
            "This model's maximum context length is {max} tokens. However, you requested {requested} tokens ({prompt} \
             in the messages, 1 in the completion). Please reduce the length of the messages.{hint}"
        ))
        .code("context_length_exceeded");
        let message = format!(
            "prompt is too long: {prompt} tokens > {} maximum.{hint}",
            max.saturating_sub(1)
        );
        error.anthropic_message = Some(message.into());
        error
    }

    /// 401: the API key is missing or unknown.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).code("invalid_api_key")
    }

    /// 403: the key lacks a scope, or the request comes from a web page of another origin.
    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).code(code)
    }

    /// 404 for a path, model, session or turn that does not exist.
    pub(crate) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code(code)
    }

    /// 409: the resource exists, but its state does not allow this.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message).code(code)
    }

    /// 429: rate or concurrency limit reached. The client may retry after `retry_after_s` seconds.
    pub(crate) fn too_many_requests(
        code: &'static str,
        retry_after_s: u64,
        message: impl Into<String>,
    ) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.code = Some(code);
        error.retry_after_s = Some(retry_after_s.max(1));
        error
    }

    /// 503: temporarily unavailable; the client may retry.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        error.code = Some(code);
        error.retry_after_s = Some(1);
        error
    }

    /// 500: an internal error.
    pub(crate) fn internal(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).code(code)
    }

    /// 500: the server panicked. Logs the panic.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!(panic = text, "a request panicked");
        let message = "the request failed inside the server; see the server log for the cause";
        Self::internal("internal_error", message)
    }

    /// Any other status.
    pub(crate) fn with_status(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let kind = if status.is_server_error() {
            "server_error"
        } else {
            "invalid_request_error"
        };
        Self::new(status, kind, message).code(code)
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The error in Anthropic's format: `{"type": "error", "error": {"type", "message"}, "request_id"}`.
    pub(crate) fn to_anthropic_json(&self, request_id: Option<&str>) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        json!({
            "type": "error",
            "error": {"type": kind, "message": self.anthropic_message.as_deref().unwrap_or(&self.message)},
            "request_id": request_id,
        })
    }

    /// The error response in Anthropic's format.
    pub(crate) fn into_anthropic_response(self, request_id: &str) -> Response {
        let body = self.to_anthropic_json(Some(request_id));
        self.with_body(self.status, body)
    }

    fn with_body(&self, status: StatusCode, body: Value) -> Response {
        let mut response = (status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// The error in OpenAI's format, for a response body or the data of an error event in a stream.
    pub fn to_json(&self) -> Value {
        json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        })
    }
}

impl IntoResponse for ApiError {
    /// The response in OpenAI's format. The error is attached as an extension, so that the admission middleware can
    /// convert it to Anthropic's format.
    fn into_response(self) -> Response {
        let mut response = self.with_body(self.status, self.to_json());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_error_always_has_four_fields() {
        let body = ApiError::bad_request("no").to_json();
        let error = body.get("error").and_then(Value::as_object).unwrap();
        assert_eq!(
            error.keys().collect::<Vec<_>>(),
            ["message", "type", "param", "code"]
        );
        assert!(error["param"].is_null());
        assert!(error["code"].is_null());
    }

    #[test]
    fn invalid_field_is_named_in_param() {
        let error = ApiError::invalid("messages[1].role", "role `x` is unknown");
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert_eq!(error.to_json()["error"]["param"], "messages[1].role");
        assert_eq!(error.to_string(), "role `x` is unknown");
    }

    #[test]
    fn too_many_requests_sets_retry_after() {
        let response = ApiError::too_many_requests("overloaded", 0, "busy").into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn unauthorized_sets_www_authenticate() {
        let response = ApiError::unauthorized("no key").into_response();
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
}
