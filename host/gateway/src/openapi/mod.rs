//! The OpenAPI document: what a client generator, a fuzzer or a person needs to know of the surface.
//!
//! It is written beside the code in Rust, served at `GET /openapi.json` and checked in as `openapi.json`. Tests hold it
//! to the routes, to the methods that really answer, and to what really is answered. It describes what this server does,
//! which is less than what the dialects know: fields that change nothing are let through and not described.

mod operations;
mod schemas;

use axum::Json;
use serde_json::{Map, Value, json};

use operations::{Answer, Operation};

/// The document as an answer.
pub(crate) async fn show() -> Json<Value> {
    Json(document())
}

/// The whole document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations::all() {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Value::Object(path) = path {
            path.insert(operation.method.into(), described(&operation));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "clawhost",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A language model that is served, judged and trained at once, in three dialects.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn described(operation: &Operation) -> Value {
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
    let mut answers = Map::new();
    for answer in &operation.answers {
        let content = match *answer {
            Answer::Json(schema) => json!({"application/json": {"schema": reference(schema)}}),
            Answer::JsonOrEvents(schema) => json!({
                "application/json": {"schema": reference(schema)},
                "text/event-stream": {"schema": reference("Event")},
            }),
            Answer::Text(kind) => json!({kind: {"schema": {"type": "string"}}}),
            Answer::Empty => Value::Null,
        };
        let mut answer = json!({"description": "Done."});
        if let Value::Object(answer) = &mut answer
            && !content.is_null()
        {
            answer.insert("content".into(), content);
        }
        answers.insert("200".into(), answer);
    }
    for (status, schema) in &operation.errors {
        let mut answer = json!({
            "description": meaning(*status),
            "content": {"application/json": {"schema": reference(schema)}},
        });
        if *status == 429
            && let Value::Object(answer) = &mut answer
        {
            let seconds = json!({"description": "Seconds to wait.", "required": true, "schema": {"type": "integer", "minimum": 1}});
            answer.insert("headers".into(), json!({"Retry-After": seconds}));
        }
        answers.insert(status.to_string(), answer);
    }
    out.insert("responses".into(), answers.into());
    out.into()
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// What an error means.
fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong, and will be wrong again.",
        401 => "No key, or one that this server does not know.",
        403 => "The key may not do this, or the request comes from a foreign web page.",
        404 => "There is no such thing, or not for this key.",
        408 => "The body did not arrive in time.",
        409 => "The thing exists, and its state forbids this.",
        413 => "The body is too large.",
        415 => "The body is not JSON.",
        429 => "Too much at once.",
        431 => "The head of the request is too large.",
        500 => "A fault of the server.",
        _ => "Not now; worth another try.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let described: BTreeSet<String> = operations::all()
            .into_iter()
            .map(|operation| operation.path.to_owned())
            .collect();
        let routed: BTreeSet<String> = crate::routes::all()
            .into_iter()
            .map(|(path, _)| path.replace("{*", "{"))
            .collect();
        assert_eq!(described, routed);
    }

    #[test]
    fn every_reference_leads_somewhere_and_no_schema_is_left_over() {
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
