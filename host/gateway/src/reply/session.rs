//! Session headers and body fields of a request. All are optional in every dialect; without them the session is matched by
//! content.

use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::parse::{parse, wrong_type};

/// Largest session id in bytes.
const MAX_SESSION_ID: usize = 256;

/// Fields about the session of a request, in every dialect.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SessionBody {
    /// Session of the request: its id, or a name chosen by the client. Default: matched by content.
    #[schemars(length(max = MAX_SESSION_ID))]
    session_id: Option<String>,
    /// Whether the turn belongs to the main conversation: `main` or `side`. Default: inferred.
    #[schemars(extend("enum" = ["main", "side", null]))]
    turn_type: Option<String>,
    /// Whether the session ends with this turn.
    #[schemars(with = "Option<bool>")]
    session_done: Option<Value>,
}

/// What the client declares about the session of a request.
#[derive(Debug, Default)]
pub(crate) struct SessionFields {
    /// `X-Session-Id`.
    pub(crate) header: Option<String>,
    /// Body field `session_id`.
    pub(crate) body: Option<String>,
    /// `main` or `side`.
    pub(crate) turn_type: Option<String>,
    /// The session ends with this turn.
    pub(crate) done: bool,
}

impl SessionFields {
    /// Parses headers and body fields.
    pub(crate) fn parse(body: &Value, headers: &HeaderMap) -> Result<Self, ApiError> {
        let body: SessionBody = parse(body)?;
        Ok(Self {
            header: header(headers, "x-session-id")?
                .map(|id| session_id(&id, "X-Session-Id"))
                .transpose()?,
            body: body
                .session_id
                .filter(|id| !id.trim().is_empty())
                .map(|id| session_id(&id, "session_id"))
                .transpose()?,
            turn_type: turn_type(body.turn_type, headers)?,
            done: session_done(body.session_done, headers)?,
        })
    }
}

fn session_id(id: &str, param: &str) -> Result<String, ApiError> {
    let id = id.trim();
    if id.len() > MAX_SESSION_ID || id.chars().any(char::is_control) {
        return Err(ApiError::invalid(
            param,
            format!("a session id has at most {MAX_SESSION_ID} bytes and no control characters"),
        ));
    }
    Ok(id.to_owned())
}

fn turn_type(body: Option<String>, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let value = header(headers, "x-turn-type")?.or(body);
    let Some(value) = value.map(|value| value.trim().to_ascii_lowercase()) else {
        return Ok(None);
    };
    match value.as_str() {
        "" => Ok(None),
        "main" | "side" => Ok(Some(value)),
        _ => Err(ApiError::invalid(
            "turn_type",
            "the turn type must be `main` or `side`; leave it out to have it inferred",
        )),
    }
}

fn session_done(body: Option<Value>, headers: &HeaderMap) -> Result<bool, ApiError> {
    let truthy = |text: &str| {
        matches!(
            text.trim().to_ascii_lowercase().as_str(),
            "1" | "true" | "yes" | "on"
        )
    };
    if let Some(value) = header(headers, "x-session-done")? {
        return Ok(truthy(&value));
    }
    // Some clients send text or numbers.
    match body {
        None => Ok(false),
        Some(Value::Bool(done)) => Ok(done),
        Some(Value::String(text)) => Ok(truthy(&text)),
        Some(Value::Number(number)) => Ok(number.as_f64().is_some_and(|number| number != 0.0)),
        Some(other) => Err(wrong_type("session_done", "true or false", &other)),
    }
}

/// A header as text; an empty header is treated as absent.
fn header(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::invalid(name, format!("the header `{name}` is not UTF-8")))?
        .trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
