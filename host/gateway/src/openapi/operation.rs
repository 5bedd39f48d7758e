//! One operation: parameters, body, responses and errors of a path with a method.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::{ErrorBody, MessagesError};
use crate::shared::Shared;

/// Adds a schema to the document and returns a reference to it.
pub(crate) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// The schema of a type.
pub(crate) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The schema of a type whose fields are a part of a request.
pub(crate) fn part<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

/// The schema of errors.
pub(crate) const ERROR: SchemaFn = schema::<ErrorBody>;

/// Name of a request schema and the types that are deserialized from the body.
pub(crate) type RequestSchema = (&'static str, &'static [SchemaFn]);

/// The body of a successful response.
#[derive(Clone, Copy)]
pub(crate) enum ResponseBody {
    /// JSON of this schema.
    Json(SchemaFn),
    /// JSON of this schema, or server-sent events if the request sets `stream`.
    JsonOrEvents(SchemaFn),
    /// Server-sent events.
    Events,
    /// Text of this media type.
    Text(&'static str),
    /// No body.
    Empty,
}

/// One path with one method.
pub(crate) struct Operation {
    pub(crate) handler: MethodRouter<Arc<Shared>>,
    pub(crate) id: &'static str,
    pub(crate) method: &'static str,
    /// The path in axum's form.
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) parameters: Vec<Value>,
    /// Schema and example of the request body.
    pub(crate) body: Option<(RequestSchema, Value)>,
    pub(crate) response: ResponseBody,
    /// Status and schema of each error.
    pub(crate) errors: Vec<(u16, SchemaFn)>,
}

/// Errors of the admission middleware, on every path that requires authentication.
const COMMON_ERRORS: [u16; 5] = [401, 403, 429, 431, 500];
/// Errors of reading a body.
const BODY_ERRORS: [u16; 4] = [400, 408, 413, 415];

macro_rules! methods {
    ($($method:ident),*) => {
        $(
            /// An operation with this method.
            pub(crate) fn $method<H: Handler<T, Arc<Shared>>, T: 'static>(
                handler: H,
                id: &'static str,
                path: &'static str,
                response: ResponseBody,
                summary: &'static str,
            ) -> Operation {
                Operation {
                    handler: routing::$method(handler),
                    id,
                    method: stringify!($method),
                    path,
                    summary,
                    parameters: Vec::new(),
                    body: None,
                    response,
                    errors: COMMON_ERRORS.map(|status| (status, ERROR)).to_vec(),
                }
            }
        )*
    };
}
methods!(get, post, put, delete);

impl Operation {
    pub(crate) fn body(mut self, schema: RequestSchema, example: Value) -> Self {
        self.body = Some((schema, example));
        self.errors(&BODY_ERRORS)
    }

    pub(crate) fn parameter(
        mut self,
        name: &str,
        place: &str,
        schema: Value,
        description: &str,
    ) -> Self {
        self.parameters.push(json!({
            "name": name, "in": place, "required": place == "path", "schema": schema, "description": description,
        }));
        self
    }

    /// Adds the parameter `id` of the path, of this JSON type.
    pub(crate) fn path_id(self, kind: &str, description: &str) -> Self {
        let schema = match kind {
            "integer" => json!({"type": kind, "minimum": 1}),
            _ => json!({"type": kind}),
        };
        self.parameter("id", "path", schema, description)
            .errors(&[400, 404])
    }

    /// A probe of load balancers: it needs no key, and has a body of its own if it fails.
    pub(crate) fn probe(mut self, failure: SchemaFn) -> Self {
        self.errors = vec![(403, ERROR), (431, ERROR), (503, failure)];
        self
    }

    pub(crate) fn errors(mut self, statuses: &[u16]) -> Self {
        self.errors
            .extend(statuses.iter().map(|status| (*status, ERROR)));
        self.errors.sort_unstable_by_key(|(status, _)| *status);
        self.errors.dedup_by_key(|(status, _)| *status);
        self
    }

    /// Removes the errors of authentication and overload.
    pub(crate) fn without_auth(mut self) -> Self {
        self.errors
            .retain(|(status, _)| !matches!(status, 401 | 429 | 500));
        self
    }

    /// Errors are in Anthropic's format.
    pub(crate) fn with_anthropic_errors(mut self) -> Self {
        for (_, error) in &mut self.errors {
            *error = schema::<MessagesError>;
        }
        self
    }

    /// Adds the session headers.
    pub(crate) fn with_session_headers(self) -> Self {
        let text = || json!({"type": "string", "maxLength": 256});
        self.parameter(
            "X-Session-Id",
            "header",
            text(),
            "Session of the request: its id, or a name chosen by the client. Default: matched by content.",
        )
        .parameter(
            "X-Turn-Type",
            "header",
            json!({"type": "string", "enum": ["main", "side"]}),
            "Whether the turn belongs to the main conversation. Default: inferred.",
        )
        .parameter(
            "X-Session-Done",
            "header",
            json!({"type": "string"}),
            "`true` ends the session with this turn.",
        )
        .errors(&[503])
    }
}
