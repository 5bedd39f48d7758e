//! Fields by which clients of vLLM hold a reply to a form, beside OpenAI's `response_format`.

use clawhost_policy::{Answer, Constraint};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::enforceable;

/// Reads `guided_json`, `guided_regex`, `guided_choice` and `structured_outputs`; at most one of them may ask for a form.
pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<Constraint>, ApiError> {
    let mut found = forms(fields, "guided_")?;
    if let Some(given) = fields.value("structured_outputs") {
        let inner = Fields::of(given, "structured_outputs")?;
        found.extend(forms(inner, "")?);
        if let Some(true) = inner.flag("json_object")? {
            let object = Constraint::json_object();
            found.push((inner.path_of("json_object"), object));
        }
        for other in ["grammar", "structural_tag", "whitespace_pattern"] {
            refuse(inner, other)?;
        }
        for flag in ["disable_any_whitespace", "disable_additional_properties"] {
            if inner.flag(flag)?.unwrap_or(false) {
                refuse(inner, flag)?;
            }
        }
    }
    for other in ["guided_grammar", "guided_whitespace_pattern"] {
        refuse(fields, other)?;
    }
    match found.as_slice() {
        [] => Ok(None),
        [(_, one)] => Ok(Some(one.clone())),
        [_, (path, _), ..] => Err(ApiError::invalid(
            path.as_str(),
            format!("a reply has one form; leave out `{path}` or the other one"),
        )),
    }
}

fn refuse(fields: Fields<'_, '_>, name: &str) -> Result<(), ApiError> {
    if fields.value(name).is_none() {
        return Ok(());
    }
    let path = fields.path_of(name);
    let message =
        format!("`{path}` is not supported; use a JSON schema, a regular expression or a choice");
    Err(ApiError::unsupported(path, message))
}

fn forms(fields: Fields<'_, '_>, prefix: &str) -> Result<Vec<(String, Constraint)>, ApiError> {
    let mut found = Vec::new();
    let json = format!("{prefix}json");
    if let Some(given) = fields.value(&json) {
        let path = fields.path_of(&json);
        // Some clients send the schema as text.
        let schema = match given {
            Value::String(text) => serde_json::from_str(text).map_err(|error| {
                ApiError::invalid(&path, format!("`{path}` is no JSON: {error}"))
            })?,
            other => other.clone(),
        };
        enforceable(&schema, &path)?;
        found.push((path, Constraint::json_schema(schema)));
    }
    let regex = format!("{prefix}regex");
    if let Some(text) = fields.text(&regex)? {
        let form = Answer::Regex(text.to_owned());
        found.push((fields.path_of(&regex), Constraint::answer(form)));
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
        let form = Answer::Choice(texts.collect::<Result<_, ApiError>>()?);
        found.push((path.clone(), Constraint::answer(form)));
    }
    Ok(found)
}
