//! Tools and tool choice of a Responses request.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::{Tool, ToolChoice, ToolList, Tools, reject_deferred};

/// Parses `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn parse(body: Fields<'_, '_>) -> Result<Tools, ApiError> {
    let parallel = body.flag("parallel_tool_calls")?.unwrap_or(true);
    let listed = body.list("tools")?.unwrap_or_default();
    let mut tools = ToolList::new(listed)?;
    for (index, tool) in listed.iter().enumerate() {
        add(&mut tools, tool, &format!("tools[{index}]"))?;
    }
    tools.finish(parse_choice(body.value("tool_choice"))?, parallel)
}

fn add(tools: &mut ToolList, tool: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::new(tool, path)?;
    let kind = fields.required_text("type")?;
    if kind != "function" {
        let shown: String = kind.chars().take(40).collect();
        return Err(ApiError::unsupported(
            fields.path_of("type"),
            format!(
                "tools of the type `{shown}` are not supported; this server runs no tools, use `function`"
            ),
        ));
    }
    reject_deferred(fields)?;
    tools.add(Tool {
        name: (fields.required_text("name")?, fields.path_of("name")),
        description: fields.text("description")?,
        schema: (fields.value("parameters"), fields.path_of("parameters")),
        strict: fields.flag("strict")?,
    })
}

fn parse_choice(value: Option<&Value>) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice";
    let truncate = |text: &str| text.chars().take(40).collect::<String>();
    match value {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(ApiError::invalid(
                FIELD,
                format!(
                    "`tool_choice` is `{}`; it must be `auto`, `none`, `required` or name a function",
                    truncate(other)
                ),
            )),
        },
        Some(object @ Value::Object(_)) => {
            let fields = Fields::new(object, FIELD)?;
            match fields.required_text("type")? {
                "function" => Ok(ToolChoice::Named(fields.required_text("name")?.to_owned())),
                "allowed_tools" => ToolChoice::parse_allowed_tools(fields, |tool| {
                    Ok(tool.required_text("name")?.to_owned())
                }),
                other => Err(ApiError::unsupported(
                    "tool_choice.type",
                    format!(
                        "a `tool_choice` of the type `{}` is not supported; use `function` or `allowed_tools`",
                        truncate(other)
                    ),
                )),
            }
        }
        Some(other) => Err(wrong_type(FIELD, "a string or an object", other)),
    }
}
