//! vLLM's structured output fields: `guided_*` and `structured_outputs`.

use clawhost_engine::{Constraint, ResponseFormat};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::reply::check_enforceable;

/// vLLM's structured output fields; at most one constraint is allowed.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct StructuredFields {
    /// The reply is JSON that matches this schema, which may be a string with JSON.
    guided_json: Option<Value>,
    /// The reply matches this regular expression.
    guided_regex: Option<String>,
    /// The reply is one of these.
    guided_choice: Option<Vec<String>>,
    #[schemars(skip)]
    guided_grammar: Option<Value>,
    #[schemars(skip)]
    guided_whitespace_pattern: Option<Value>,
    /// The same under the names of later versions of vLLM.
    structured_outputs: Option<StructuredOutputs>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    /// The reply is any JSON object.
    json_object: Option<bool>,
    #[schemars(skip)]
    grammar: Option<Value>,
    #[schemars(skip)]
    structural_tag: Option<Value>,
    #[schemars(skip)]
    whitespace_pattern: Option<Value>,
    #[schemars(skip)]
    disable_any_whitespace: Option<bool>,
    #[schemars(skip)]
    disable_additional_properties: Option<bool>,
}

impl StructuredFields {
    /// The constraint, if any.
    pub(super) fn into_constraint(self) -> Result<Option<Constraint>, ApiError> {
        reject("guided_grammar", self.guided_grammar.is_some())?;
        reject(
            "guided_whitespace_pattern",
            self.guided_whitespace_pattern.is_some(),
        )?;
        let mut constraints = Vec::new();
        add_json(&mut constraints, "guided_json", self.guided_json)?;
        add_regex(&mut constraints, "guided_regex", self.guided_regex);
        add_choice(&mut constraints, "guided_choice", self.guided_choice);
        if let Some(outputs) = self.structured_outputs {
            for (name, is_set) in [
                ("grammar", outputs.grammar.is_some()),
                ("structural_tag", outputs.structural_tag.is_some()),
                ("whitespace_pattern", outputs.whitespace_pattern.is_some()),
                (
                    "disable_any_whitespace",
                    outputs.disable_any_whitespace == Some(true),
                ),
                (
                    "disable_additional_properties",
                    outputs.disable_additional_properties == Some(true),
                ),
            ] {
                reject(&format!("structured_outputs.{name}"), is_set)?;
            }
            add_json(&mut constraints, "structured_outputs.json", outputs.json)?;
            add_regex(&mut constraints, "structured_outputs.regex", outputs.regex);
            add_choice(
                &mut constraints,
                "structured_outputs.choice",
                outputs.choice,
            );
            if outputs.json_object == Some(true) {
                constraints.push(("structured_outputs.json_object", Constraint::json_object()));
            }
        }
        match constraints.as_slice() {
            [] => Ok(None),
            [(_, one)] => Ok(Some(one.clone())),
            [_, (path, _), ..] => Err(ApiError::invalid(
                *path,
                format!(
                    "`{path}` cannot be combined with another structured output field; send only one"
                ),
            )),
        }
    }
}

/// Constraints with their paths.
type Constraints = Vec<(&'static str, Constraint)>;

fn reject(path: &str, is_set: bool) -> Result<(), ApiError> {
    if !is_set {
        return Ok(());
    }
    let message =
        format!("`{path}` is not supported; use a JSON schema, a regular expression or a choice");
    Err(ApiError::unsupported(path, message))
}

fn add_json(
    constraints: &mut Constraints,
    path: &'static str,
    schema: Option<Value>,
) -> Result<(), ApiError> {
    let schema = match schema {
        None => return Ok(()),
        // Some clients send the schema as a string.
        Some(Value::String(text)) => serde_json::from_str(&text).map_err(|error| {
            ApiError::invalid(path, format!("`{path}` is not valid JSON: {error}"))
        })?,
        Some(other) => other,
    };
    check_enforceable(&schema, path)?;
    constraints.push((path, Constraint::json_schema(schema)));
    Ok(())
}

fn add_regex(constraints: &mut Constraints, path: &'static str, regex: Option<String>) {
    let format = regex.map(ResponseFormat::Regex);
    constraints.extend(format.map(|format| (path, Constraint::response_format(format))));
}

fn add_choice(constraints: &mut Constraints, path: &'static str, choice: Option<Vec<String>>) {
    let format = choice.map(ResponseFormat::Choice);
    constraints.extend(format.map(|format| (path, Constraint::response_format(format))));
}
