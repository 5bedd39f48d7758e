//! What a client is told when a request cannot be served: its dialect's error object with the right status.
//!
//! Every refusal of this crate is an [`ApiError`], so that there is one place that decides the shape, OpenAI's or
//! Anthropic's, and an SDK that parses their errors parses ours. It never carries internals: the message names
//! the fact and the fix, the log keeps the rest.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A refusal in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}` with an HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    /// The words of Anthropic's dialect, where its clients look for others. None: `message`.
    messages_message: Option<Box<str>>,
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
            messages_message: None,
            retry_after_s: None,
        }
    }

    /// 400: the request itself is wrong and will be wrong again.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for one field that has the wrong type or value.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message)
            .param(param)
            .code("invalid_value")
    }

    /// 400 for a field that OpenAI knows and this server does not do yet. Ignoring it silently would
    /// give the client something else than it asked for.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message)
            .param(param)
            .code("unsupported_parameter")
    }

    /// 400: the prompt leaves no room in a context of `max` tokens. Clients decide by these very words, in each dialect by its
    /// own, whether to shorten the conversation and try again. `hint` is what an operator can do about it, if anything.
    pub(crate) fn context_exceeded(prompt: usize, max: usize, hint: Option<&str>) -> Self {
        let hint = hint.map(|hint| format!(" {hint}")).unwrap_or_default();
        let requested = prompt + 1;
        let mut error = Self::bad_request(format!(
            "This model's maximum context length is {max} tokens. However, you requested {requested} tokens ({prompt} \
             in the messages, 1 in the completion). Please reduce the length of the messages.{hint}"
        ))
        .code("context_length_exceeded");
        let words = format!(
            "prompt is too long: {prompt} tokens > {} maximum.{hint}",
            max.saturating_sub(1)
        );
        error.messages_message = Some(words.into());
        error
    }

    /// 401: no key, or one that is not configured.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).code("invalid_api_key")
    }

    /// 403: the key is known and may not do this, or the request comes from a foreign web page.
    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).code(code)
    }

    /// 404 for a path, model, session or turn that does not exist.
    pub(crate) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code(code)
    }

    /// 409: the thing exists and its state forbids this.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message).code(code)
    }

    /// 429: too much at once. The client may try again after `retry_after_s` seconds.
    pub(crate) fn too_many(
        code: &'static str,
        retry_after_s: u64,
        message: impl Into<String>,
    ) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.code = Some(code);
        error.retry_after_s = Some(retry_after_s.max(1));
        error
    }

    /// 503: not the client's fault, and worth another try.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        error.code = Some(code);
        error.retry_after_s = Some(1);
        error
    }

    /// 500: a fault of the server.
    pub(crate) fn internal(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).code(code)
    }

    /// Any other status, in the same shape.
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

    /// The error in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`.
    pub(crate) fn to_messages_json(&self, request_id: Option<&str>) -> Value {
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
            "error": {"type": kind, "message": self.messages_message.as_deref().unwrap_or(&self.message)},
            "request_id": request_id,
        })
    }

    /// The same answer in Anthropic's shape.
    pub(crate) fn into_messages_response(self, request_id: &str) -> Response {
        let body = self.to_messages_json(Some(request_id));
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

    /// The error object, as a body and as the data of an error event in a stream.
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
    /// In OpenAI's shape. The error travels along, so that the door can give it the shape of another dialect.
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
    fn has_openais_four_fields_even_when_empty() {
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
    fn names_the_field_that_is_wrong() {
        let error = ApiError::invalid("messages[1].role", "role `x` is unknown");
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert_eq!(error.to_json()["error"]["param"], "messages[1].role");
        assert_eq!(error.to_string(), "role `x` is unknown");
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let response = ApiError::too_many("overloaded", 0, "busy").into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn a_missing_key_is_told_how_to_authenticate() {
        let response = ApiError::unauthorized("no key").into_response();
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
}
