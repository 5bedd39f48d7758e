//! The OpenAPI document, served at `GET /openapi.json` and checked in as `openapi.json`.
//!
//! Tests check it against the routes, the supported methods and real responses. It describes what this server supports,
//! which is less than the original APIs: fields that are accepted and ignored are not described.

mod operations;
mod schemas;

use axum::Json;
use serde_json::{Map, Value, json};

use operations::{Operation, ResponseBody};

/// Serves the document.
pub(crate) async fn show() -> Json<Value> {
    Json(document())
}

/// Builds the document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations::operations() {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Value::Object(path) = path {
            path.insert(operation.method.into(), operation_object(&operation));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "clawhost",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI- and Anthropic-compatible LLM server that trains the model from its conversations.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas::schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn operation_object(operation: &Operation) -> Value {
    let mut out = Map::new();
    out.insert("operationId".into(), operation.id.into());
    out.insert("summary".into(), operation.summary.into());
    if !operation.parameters.is_empty() {
        out.insert("parameters".into(), operation.parameters.clone().into());
    }
    if let Some((schema, example)) = &operation.body {
        out.insert(
            "requestBody".into(),
            json!({"required": true, "content": {"application/json": {"schema": reference(schema), "example": example}}}),
        );
    }
    let mut responses = Map::new();
    for response in &operation.responses {
        let content = match *response {
            ResponseBody::Json(schema) => {
                json!({"application/json": {"schema": reference(schema)}})
            }
            ResponseBody::JsonOrEvents(schema) => json!({
                "application/json": {"schema": reference(schema)},
                "text/event-stream": {"schema": reference("Event")},
            }),
            ResponseBody::Events => json!({"text/event-stream": {"schema": reference("Event")}}),
            ResponseBody::Text(kind) => json!({kind: {"schema": {"type": "string"}}}),
            ResponseBody::Empty => Value::Null,
        };
        let mut response = json!({"description": "Success."});
        if let Value::Object(response) = &mut response
            && !content.is_null()
        {
            response.insert("content".into(), content);
        }
        responses.insert("200".into(), response);
    }
    for (status, schema) in &operation.errors {
        let mut response = json!({
            "description": status_description(*status),
            "content": {"application/json": {"schema": reference(schema)}},
        });
        if *status == 429
            && let Value::Object(response) = &mut response
        {
            let seconds = json!({"description": "Seconds to wait before a retry.", "required": true, "schema": {"type": "integer", "minimum": 1}});
            response.insert("headers".into(), json!({"Retry-After": seconds}));
        }
        responses.insert(status.to_string(), response);
    }
    out.insert("responses".into(), responses.into());
    out.into()
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// Description of an error status.
fn status_description(status: u16) -> &'static str {
    match status {
        400 => "Invalid request.",
        401 => "Missing or invalid API key.",
        403 => "The key lacks the required scope, or the host or origin is not allowed.",
        404 => "Not found, or not accessible with this key.",
        408 => "Timeout while reading the request body.",
        409 => "The state of the resource does not allow this.",
        413 => "The request body is too large.",
        415 => "The request body is not JSON, or its encoding is not supported.",
        429 => "Rate or concurrency limit reached.",
        431 => "The request head is too large.",
        500 => "Internal error.",
        _ => "Temporarily unavailable.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn described_paths_match_the_routes() {
        let described: BTreeSet<String> = operations::operations()
            .into_iter()
            .map(|operation| operation.path.to_owned())
            .collect();
        let routed: BTreeSet<String> = crate::routes::routes()
            .into_iter()
            .map(|(path, _)| path.replace("{*", "{"))
            .collect();
        assert_eq!(described, routed);
    }

    #[test]
    fn references_match_the_defined_schemas() {
        let document = document();
        let mut named = BTreeSet::new();
        references(&document, &mut named);
        let known: BTreeSet<String> = document["components"]["schemas"]
            .as_object()
            .unwrap()
            .keys()
            .map(|name| format!("#/components/schemas/{name}"))
            .collect();
        assert_eq!(named, known);
    }

    fn references(value: &Value, named: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(name)) = map.get("$ref") {
                    named.insert(name.clone());
                }
                map.values().for_each(|value| references(value, named));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, named)),
            _ => {}
        }
    }
}
