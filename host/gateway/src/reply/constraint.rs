//! Builds the structured output constraint of a request from its response format and tool choice.

use clawhost_chat::Tool;
use clawhost_engine::{
    CallableTool, Constraint, ConstraintError, ToolCallConstraint, check_schema,
};

use super::{InferenceRequest, TextFormat, ToolChoice};
use crate::error::ApiError;

/// Most tool calls in a reply that is forced to call a tool.
const MAX_FORCED_CALLS: u32 = 16;

/// The constraint of a request, if any. With both a response format and optional tools, the reply either matches the
/// format or calls tools.
///
/// `format` is the dialect's name of the response format field.
pub(super) fn from_request(
    request: &InferenceRequest,
    format: &str,
) -> Result<Option<Constraint>, ApiError> {
    if request.format != TextFormat::Text && request.sampling.constraint.is_some() {
        return Err(ApiError::invalid(
            format,
            format!(
                "`{format}` cannot be combined with another structured output field; send only one"
            ),
        ));
    }
    let tools = &request.tools;
    let max_calls = if tools.parallel { MAX_FORCED_CALLS } else { 1 };
    let forced = match &tools.choice {
        ToolChoice::Required => Some((callable_tools(&tools.definitions, None, true)?, max_calls)),
        ToolChoice::Named(name) => Some((callable_tools(&tools.definitions, Some(name), true)?, 1)),
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Allowed { .. } => None,
    };
    if let Some((tools, max_calls)) = forced {
        return Ok(Some(Constraint::tool_calls(tools, max_calls)));
    }
    let constraint = match &request.format {
        // `guided_*` and `structured_outputs` fields.
        TextFormat::Text => request.sampling.constraint.clone(),
        TextFormat::JsonObject => Some(Constraint::json_object()),
        TextFormat::JsonSchema(schema) => Some(Constraint::json_schema(schema.clone())),
    };
    let Some(mut constraint) = constraint else {
        return Ok(None);
    };
    if !tools.definitions.is_empty() {
        let tools = callable_tools(&tools.definitions, None, false)?;
        constraint.calls = Some(ToolCallConstraint {
            tools,
            most: max_calls,
        });
    }
    Ok(Some(constraint))
}

/// The tools (or only the tool `named`) with their parameter schemas. A schema that cannot be enforced is an error if calls
/// are `forced`; otherwise any JSON object is accepted as arguments.
fn callable_tools(
    tools: &[Tool],
    named: Option<&String>,
    forced: bool,
) -> Result<Vec<CallableTool>, ApiError> {
    let mut callable = Vec::with_capacity(tools.len());
    for (index, Tool { function, .. }) in tools.iter().enumerate() {
        let name = &function.name;
        if named.is_some_and(|named| named != name) {
            continue;
        }
        let mut parameters = function.parameters.clone();
        if let Some(Err(error)) = parameters.as_ref().map(check_schema) {
            if forced {
                return Err(ApiError::invalid(
                    format!("tools[{index}]"),
                    format!("the schema of the tool `{name}` cannot be enforced: {error}"),
                ));
            }
            parameters = None;
        }
        callable.push(CallableTool {
            name: name.clone(),
            parameters,
        });
    }
    Ok(callable)
}

/// Converts a constraint error of the engine to an API error. `format` is the name of the response format field.
pub(crate) fn constraint_error(error: &ConstraintError, format: &str) -> ApiError {
    match error {
        ConstraintError::Busy => ApiError::too_many_requests("overloaded", 1, error.to_string()),
        ConstraintError::Schema { tool: Some(_), .. } => {
            ApiError::invalid("tools", error.to_string())
        }
        _ => ApiError::invalid(format, error.to_string()),
    }
}
