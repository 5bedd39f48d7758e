//! The OpenAPI document, served at `GET /openapi.json` and checked in as `openapi.json`.
//!
//! It is built from the routes and from the schemas of the types that requests are deserialized from and responses are
//! serialized from. Tests check it against the supported methods and real responses. It describes what this server
//! supports, which is less than the original APIs: fields that are accepted and ignored are not described.

mod operation;
mod types;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

pub(crate) use operation::{
    Operation, RequestSchema, ResponseBody, SchemaFn, delete, get, part, post, put, schema,
};
pub(crate) use types::{Document, ErrorBody, Event, Explained, MessagesError};

/// Builds the document of these operations.
pub(crate) fn document(operations: &[Operation]) -> Value {
    let mut components = Components::new();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let path = operation.path.replace("{*", "{");
        let path = paths.entry(path).or_insert_with(|| json!({}));
        path[operation.method] = operation_object(operation, &mut components);
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
            "schemas": components.into_schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

/// The schemas of the document so far.
struct Components {
    requests: Map<String, Value>,
    /// Of types that are deserialized.
    request_parts: SchemaGenerator,
    /// Of types that are serialized.
    responses: SchemaGenerator,
}

impl Components {
    fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        Self {
            requests: Map::new(),
            request_parts: settings.clone().for_deserialize().into_generator(),
            responses: settings.for_serialize().into_generator(),
        }
    }

    /// Adds the schema of a request, which has the fields of all its types; returns a reference to it. Where two types
    /// have the same field, the first one wins: its bounds are narrower.
    fn request(&mut self, (name, types): RequestSchema) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for part in types {
            let mut part = part(&mut self.request_parts);
            if let Some(Value::Object(fields)) = part.remove("properties") {
                for (name, field) in fields {
                    properties.entry(name).or_insert(field);
                }
            }
            if let Some(Value::Array(names)) = part.remove("required") {
                required.extend(names);
            }
        }
        let schema = json!({"type": "object", "properties": properties, "required": required});
        self.requests.insert(name.to_owned(), schema);
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    fn response(&mut self, schema: SchemaFn) -> Value {
        schema(&mut self.responses).into()
    }

    fn into_schemas(mut self) -> Map<String, Value> {
        let mut all = self.requests;
        all.extend(self.request_parts.take_definitions(true));
        all.extend(self.responses.take_definitions(true));
        all.sort_keys();
        all
    }
}

fn operation_object(operation: &Operation, components: &mut Components) -> Value {
    let mut out = json!({"operationId": operation.id, "summary": operation.summary});
    if !operation.parameters.is_empty() {
        out["parameters"] = operation.parameters.clone().into();
    }
    if let Some((schema, example)) = &operation.body {
        let schema = components.request(*schema);
        out["requestBody"] = json!({
            "required": true, "content": {"application/json": {"schema": schema, "example": example}},
        });
    }
    let mut success = json!({"description": "Success."});
    let mut add = |kind: &str, schema: Value| success["content"][kind] = json!({"schema": schema});
    match operation.response {
        ResponseBody::Json(schema) => add("application/json", components.response(schema)),
        ResponseBody::JsonOrEvents(schema) => {
            add("application/json", components.response(schema));
            add("text/event-stream", components.response(EVENT));
        }
        ResponseBody::Events => add("text/event-stream", components.response(EVENT)),
        ResponseBody::Text(kind) => add(kind, json!({"type": "string"})),
        ResponseBody::Empty => {}
    }
    out["responses"]["200"] = success;
    for (status, schema) in &operation.errors {
        let mut response = json!({
            "description": status_description(*status),
            "content": {"application/json": {"schema": components.response(*schema)}},
        });
        if *status == 429 {
            let seconds = json!({"description": "Seconds to wait before a retry.", "required": true, "schema": {"type": "integer", "minimum": 1}});
            response["headers"] = json!({"Retry-After": seconds});
        }
        out["responses"][status.to_string()] = response;
    }
    out
}

/// The schema of server-sent events.
const EVENT: SchemaFn = schema::<Event>;

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
    fn references_match_the_defined_schemas() {
        let document = document(&crate::routes::routes());
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
