//! Shapes that have no type of their own: of errors, which are built for two APIs, of events, and of what other crates
//! assemble.

use schemars::JsonSchema;
use serde_json::{Map, Value};

/// An error in OpenAI's format.
#[derive(JsonSchema)]
#[schemars(rename = "Error")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct ErrorObject {
    /// What is wrong and what to do.
    message: String,
    #[schemars(rename = "type")]
    kind: String,
    /// Path of the invalid field.
    param: Option<String>,
    code: Option<String>,
}

/// An error in Anthropic's format.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct MessagesError {
    #[schemars(rename = "type", extend("const" = "error"))]
    kind: String,
    error: MessagesErrorObject,
    request_id: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct MessagesErrorObject {
    #[schemars(rename = "type")]
    kind: MessagesErrorKind,
    message: String,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum MessagesErrorKind {
    InvalidRequestError,
    AuthenticationError,
    PermissionError,
    NotFoundError,
    RequestTooLarge,
    RateLimitError,
    ApiError,
    OverloadedError,
}

/// A server-sent event.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Event {
    #[schemars(skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    data: String,
}

/// An OpenAPI document.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Document {
    openapi: String,
    paths: Map<String, Value>,
}

/// How turns were judged and trained.
#[derive(JsonSchema)]
#[schemars(transparent)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Explained(Map<String, Value>);
