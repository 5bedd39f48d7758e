//! What the form of a reply and the choice of tools ask of its tokens.

use clawhost_policy::{Callable, Calls, Constraint, ConstraintError, check_schema};
use serde_json::Value;

use super::{Ask, Format, ToolChoice};
use crate::error::ApiError;

/// Most calls in a reply that must have one.
const MAX_CALLS: u32 = 16;

/// The constraint of a reply, if any of its fields asks for one. Where the reply must have a form and the model may
/// call tools, it does one of the two.
///
/// `format` is the field by which the dialect asks for a form.
pub(super) fn of(ask: &Ask, format: &str) -> Result<Option<Constraint>, ApiError> {
    if ask.format != Format::Text && ask.sampling.constraint.is_some() {
        return Err(ApiError::invalid(
            format,
            format!(
                "a reply has one form; leave out `{format}`, or the other field that asks for one"
            ),
        ));
    }
    let tools = &ask.tools;
    let most = if tools.parallel { MAX_CALLS } else { 1 };
    let forced = match &tools.choice {
        ToolChoice::Required => Some((forms(&tools.definitions, None, true)?, most)),
        ToolChoice::Named(name) => Some((forms(&tools.definitions, Some(name), true)?, 1)),
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Allowed { .. } => None,
    };
    if let Some((tools, most)) = forced {
        return Ok(Some(Constraint::calls(tools, most)));
    }
    let asked = match &ask.format {
        // Fields beside the format may ask for one of their own.
        Format::Text => ask.sampling.constraint.clone(),
        Format::Object => Some(Constraint::json_object()),
        Format::Schema(schema) => Some(Constraint::json_schema(schema.clone())),
    };
    let Some(mut constraint) = asked else {
        return Ok(None);
    };
    if !tools.definitions.is_empty() {
        let tools = forms(&tools.definitions, None, false)?;
        constraint.calls = Some(Calls { tools, most });
    }
    Ok(Some(constraint))
}

/// The tools (or the one that is `named`) as forms of calls. A schema that cannot be enforced is refused where calls are `forced`; where they are
/// merely possible, any object will do, as it does without a constraint.
fn forms(
    definitions: &[Value],
    named: Option<&String>,
    forced: bool,
) -> Result<Vec<Callable>, ApiError> {
    let mut forms = Vec::with_capacity(definitions.len());
    for (index, definition) in definitions.iter().enumerate() {
        let function = definition.get("function");
        let name = function.and_then(|f| f.get("name")).and_then(Value::as_str);
        let name = name.unwrap_or_default().to_owned();
        if named.is_some_and(|named| *named != name) {
            continue;
        }
        let mut parameters = function.and_then(|f| f.get("parameters")).cloned();
        if let Some(Err(error)) = parameters.as_ref().map(check_schema) {
            if forced {
                return Err(ApiError::invalid(
                    format!("tools[{index}]"),
                    format!("the schema of the tool `{name}` cannot be enforced: {error}"),
                ));
            }
            parameters = None;
        }
        forms.push(Callable { name, parameters });
    }
    Ok(forms)
}

/// What the client is told when the engine cannot enforce a form. `format` is the field that asks for it.
pub(crate) fn refusal(error: &ConstraintError, format: &str) -> ApiError {
    match error {
        ConstraintError::Busy => ApiError::too_many("overloaded", 1, error.to_string()),
        ConstraintError::Schema { tool: Some(_), .. } => {
            ApiError::invalid("tools", error.to_string())
        }
        _ => ApiError::invalid(format, error.to_string()),
    }
}
