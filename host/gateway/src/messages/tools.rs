//! Tools and tool choice of a messages request.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{Tool, ToolChoice, ToolList, Tools, reject_deferred};

/// Parses `tools` and `tool_choice`.
pub(super) fn parse(body: Fields<'_, '_>) -> Result<Tools, ApiError> {
    let listed = body.list("tools")?.unwrap_or_default();
    let mut tools = ToolList::new(listed)?;
    for (index, tool) in listed.iter().enumerate() {
        add(&mut tools, tool, &format!("tools[{index}]"))?;
    }
    let (choice, parallel) = parse_choice(body.value("tool_choice"))?;
    tools.finish(choice, parallel)
}

fn add(tools: &mut ToolList, tool: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::new(tool, path)?;
    let kind = fields.text("type")?.unwrap_or("custom");
    if kind != "custom" {
        let shown: String = kind.chars().take(40).collect();
        return Err(ApiError::unsupported(
            fields.path_of("type"),
            format!(
                "`{}` is `{shown}`; only tools with a schema of their own (`custom`) are supported",
                fields.path_of("type")
            ),
        ));
    }
    let schema = fields
        .value("input_schema")
        .ok_or_else(|| fields.missing("input_schema"))?;
    reject_deferred(fields)?;
    if fields
        .list("input_examples")?
        .is_some_and(|examples| !examples.is_empty())
    {
        return Err(ApiError::unsupported(
            fields.path_of("input_examples"),
            "`input_examples` is not supported; put the examples into the description",
        ));
    }
    tools.add(Tool {
        name: (fields.required_text("name")?, fields.path_of("name")),
        description: fields.text("description")?,
        schema: (Some(schema), fields.path_of("input_schema")),
        strict: fields.flag("strict")?,
    })
}

/// Parses `tool_choice`; the flag allows several calls in one reply.
fn parse_choice(value: Option<&Value>) -> Result<(ToolChoice, bool), ApiError> {
    let Some(value) = value else {
        return Ok((ToolChoice::Auto, true));
    };
    let fields = Fields::new(value, "tool_choice")?;
    let choice = match fields.required_text("type")? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(fields.required_text("name")?.to_owned()),
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(ApiError::invalid(
                "tool_choice.type",
                format!(
                    "`tool_choice.type` is `{shown}`; it must be `auto`, `any`, `tool` or `none`"
                ),
            ));
        }
    };
    let disable_parallel = fields.flag("disable_parallel_tool_use")?.unwrap_or(false);
    Ok((choice, !disable_parallel))
}
