//! vLLM's structured output fields: `guided_*` and `structured_outputs`.

use clawhost_policy::{Constraint, ResponseFormat};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::check_enforceable;

/// Parses `guided_json`, `guided_regex`, `guided_choice` and `structured_outputs`; at most one constraint is allowed.
pub(super) fn parse(fields: Fields<'_, '_>) -> Result<Option<Constraint>, ApiError> {
    let mut constraints = parse_constraints(fields, "guided_")?;
    if let Some(value) = fields.value("structured_outputs") {
        let inner = Fields::new(value, "structured_outputs")?;
        constraints.extend(parse_constraints(inner, "")?);
        if let Some(true) = inner.flag("json_object")? {
            let object = Constraint::json_object();
            constraints.push((inner.path_of("json_object"), object));
        }
        for other in ["grammar", "structural_tag", "whitespace_pattern"] {
            reject(inner, other)?;
        }
        for flag in ["disable_any_whitespace", "disable_additional_properties"] {
            if inner.flag(flag)?.unwrap_or(false) {
                reject(inner, flag)?;
            }
        }
    }
    for other in ["guided_grammar", "guided_whitespace_pattern"] {
        reject(fields, other)?;
    }
    match constraints.as_slice() {
        [] => Ok(None),
        [(_, one)] => Ok(Some(one.clone())),
        [_, (path, _), ..] => Err(ApiError::invalid(
            path.as_str(),
            format!(
                "`{path}` cannot be combined with another structured output field; send only one"
            ),
        )),
    }
}

fn reject(fields: Fields<'_, '_>, name: &str) -> Result<(), ApiError> {
    if fields.value(name).is_none() {
        return Ok(());
    }
    let path = fields.path_of(name);
    let message =
        format!("`{path}` is not supported; use a JSON schema, a regular expression or a choice");
    Err(ApiError::unsupported(path, message))
}

fn parse_constraints(
    fields: Fields<'_, '_>,
    prefix: &str,
) -> Result<Vec<(String, Constraint)>, ApiError> {
    let mut constraints = Vec::new();
    let json = format!("{prefix}json");
    if let Some(value) = fields.value(&json) {
        let path = fields.path_of(&json);
        // Some clients send the schema as a string.
        let schema = match value {
            Value::String(text) => serde_json::from_str(text).map_err(|error| {
                ApiError::invalid(&path, format!("`{path}` is not valid JSON: {error}"))
            })?,
            other => other.clone(),
        };
        check_enforceable(&schema, &path)?;
        constraints.push((path, Constraint::json_schema(schema)));
    }
    let regex = format!("{prefix}regex");
    if let Some(text) = fields.text(&regex)? {
        let format = ResponseFormat::Regex(text.to_owned());
        constraints.push((fields.path_of(&regex), Constraint::response_format(format)));
    }
    let choice = format!("{prefix}choice");
    if let Some(listed) = fields.list(&choice)? {
        let path = fields.path_of(&choice);
        let texts = listed.iter().enumerate().map(|(index, text)| {
            let place = format!("{path}[{index}]");
            let text = text
                .as_str()
                .ok_or_else(|| wrong_type(&place, "a string", text))?;
            Ok(text.to_owned())
        });
        let format = ResponseFormat::Choice(texts.collect::<Result<_, ApiError>>()?);
        constraints.push((path.clone(), Constraint::response_format(format)));
    }
    Ok(constraints)
}
