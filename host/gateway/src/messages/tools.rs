//! The tools of a messages request and what the client says about their use.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{Tool, ToolChoice, ToolList, Tools, refuse_deferred};

/// Reads `tools` and `tool_choice`.
pub(super) fn read(body: Fields<'_, '_>) -> Result<Tools, ApiError> {
    let listed = body.list("tools")?.unwrap_or_default();
    let mut tools = ToolList::of(listed)?;
    for (index, tool) in listed.iter().enumerate() {
        add(&mut tools, tool, &format!("tools[{index}]"))?;
    }
    let (choice, parallel) = choice(body.value("tool_choice"))?;
    tools.finish(choice, parallel)
}

fn add(tools: &mut ToolList, tool: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::of(tool, path)?;
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
    refuse_deferred(fields)?;
    if fields
        .list("input_examples")?
        .is_some_and(|examples| !examples.is_empty())
    {
        return Err(ApiError::unsupported(
            fields.path_of("input_examples"),
            "examples of a tool's input are not shown to this model; put them into the description",
        ));
    }
    tools.add(Tool {
        name: (fields.required_text("name")?, fields.path_of("name")),
        description: fields.text("description")?,
        schema: (Some(schema), fields.path_of("input_schema")),
        strict: fields.flag("strict")?,
    })
}

/// What is to be called, and whether several calls may come at once.
fn choice(given: Option<&Value>) -> Result<(ToolChoice, bool), ApiError> {
    let Some(given) = given else {
        return Ok((ToolChoice::Auto, true));
    };
    let fields = Fields::of(given, "tool_choice")?;
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
    let one = fields.flag("disable_parallel_tool_use")?.unwrap_or(false);
    Ok((choice, !one))
}
