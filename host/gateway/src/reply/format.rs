//! What form the text of a reply must have. The dialects spell it differently and mean the same.

use clawhost_policy::check_schema;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// The form of a reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Format {
    /// Whatever the model writes.
    #[default]
    Text,
    /// Any JSON object.
    Object,
    /// JSON that fits this schema.
    Schema(Value),
}

impl Format {
    /// Reads the object at `path`: `{"type": "text" | "json_object" | "json_schema", …}`. The schema is in the object
    /// itself, or in its field `within`.
    pub(crate) fn read(
        given: Option<&Value>,
        path: &str,
        within: Option<&str>,
    ) -> Result<Self, ApiError> {
        let Some(given) = given else {
            return Ok(Self::Text);
        };
        let fields = Fields::of(given, path)?;
        Ok(match fields.required_text("type")? {
            "text" => Self::Text,
            "json_object" => Self::Object,
            "json_schema" => Self::Schema(schema(fields, within)?),
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

fn schema(fields: Fields<'_, '_>, within: Option<&str>) -> Result<Value, ApiError> {
    let path;
    let holder = match within {
        None => fields,
        Some(name) => {
            path = fields.path_of(name);
            let holder = fields.value(name).ok_or_else(|| fields.missing(name))?;
            Fields::of(holder, &path)?
        }
    };
    match holder.value("schema") {
        None => Err(holder.missing("schema")),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
            enforceable(schema, &holder.path_of("schema"))?;
            Ok(schema.clone())
        }
        Some(other) => Err(wrong_type(
            &holder.path_of("schema"),
            "a JSON schema",
            other,
        )),
    }
}

/// Refuses a schema that cannot be enforced, by the place inside it.
pub(crate) fn enforceable(schema: &Value, path: &str) -> Result<(), ApiError> {
    check_schema(schema).map_err(|error| {
        let path = match error.path.as_str() {
            "" => path.to_owned(),
            inside => format!("{path}.{inside}"),
        };
        let message = format!("`{path}`: {}", error.reason);
        ApiError::invalid(path, message)
    })
}
