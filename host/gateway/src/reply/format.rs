//! The response format of a request (`response_format`, `text.format`, `output_config.format`).

use clawhost_engine::check_schema;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::parse::{AnySchema, join, required};

/// The object with the response format.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseFormat")]
pub(crate) struct FormatFields {
    #[serde(rename = "type")]
    kind: FormatKind,
    /// The JSON schema, in responses and messages.
    schema: Option<AnySchema>,
    /// The JSON schema, in chat completions.
    json_schema: Option<SchemaHolder>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct SchemaHolder {
    #[schemars(required)]
    schema: Option<AnySchema>,
}

/// The format of the text of a reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum TextFormat {
    /// Free text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
}

impl TextFormat {
    /// The format of the object at `path`. The schema is in a field of the object itself, or of the object in its field
    /// `holder`.
    pub(crate) fn new(
        format: Option<FormatFields>,
        path: &str,
        holder: Option<&str>,
    ) -> Result<Self, ApiError> {
        let Some(format) = format else {
            return Ok(Self::Text);
        };
        Ok(match format.kind {
            FormatKind::Text => Self::Text,
            FormatKind::JsonObject => Self::JsonObject,
            FormatKind::JsonSchema => {
                let (schema, path) = match holder {
                    None => (format.schema, path.to_owned()),
                    Some(name) => (
                        required(format.json_schema, path, name)?.schema,
                        join(path, name),
                    ),
                };
                let AnySchema(schema) = required(schema, &path, "schema")?;
                check_enforceable(&schema, &join(&path, "schema"))?;
                Self::JsonSchema(schema)
            }
        })
    }
}

/// Rejects a schema that cannot be enforced; the error names the position inside it.
pub(crate) fn check_enforceable(schema: &Value, path: &str) -> Result<(), ApiError> {
    check_schema(schema).map_err(|error| {
        let path = match error.path.as_str() {
            "" => path.to_owned(),
            inside => format!("{path}.{inside}"),
        };
        let message = format!("`{path}`: {}", error.reason);
        ApiError::invalid(path, message)
    })
}
