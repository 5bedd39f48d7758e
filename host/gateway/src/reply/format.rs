//! The response format of a request (`response_format`, `text.format`, `output_config.format`).

use clawhost_policy::check_schema;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

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
    /// Parses the object at `path`: `{"type": "text" | "json_object" | "json_schema", …}`. `schema` is a field of the object
    /// itself, or of the object in its field `schema_field`.
    pub(crate) fn parse(
        value: Option<&Value>,
        path: &str,
        schema_field: Option<&str>,
    ) -> Result<Self, ApiError> {
        let Some(value) = value else {
            return Ok(Self::Text);
        };
        let fields = Fields::new(value, path)?;
        Ok(match fields.required_text("type")? {
            "text" => Self::Text,
            "json_object" => Self::JsonObject,
            "json_schema" => Self::JsonSchema(parse_schema(fields, schema_field)?),
            other => {
                let shown: String = other.chars().take(40).collect();
                return Err(ApiError::invalid(
                    fields.path_of("type"),
                    format!(
                        "`{}` is `{shown}`; it must be `text`, `json_object` or `json_schema`",
                        fields.path_of("type")
                    ),
                ));
            }
        })
    }
}

fn parse_schema(fields: Fields<'_, '_>, schema_field: Option<&str>) -> Result<Value, ApiError> {
    let path;
    let holder = match schema_field {
        None => fields,
        Some(name) => {
            path = fields.path_of(name);
            let holder = fields.value(name).ok_or_else(|| fields.missing(name))?;
            Fields::new(holder, &path)?
        }
    };
    match holder.value("schema") {
        None => Err(holder.missing("schema")),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
            check_enforceable(schema, &holder.path_of("schema"))?;
            Ok(schema.clone())
        }
        Some(other) => Err(wrong_type(
            &holder.path_of("schema"),
            "a JSON schema",
            other,
        )),
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
