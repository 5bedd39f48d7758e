//! The tools of a Responses request and what the client says about their use.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::{Tool, ToolChoice, ToolList, Tools, refuse_deferred};

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn read(body: Fields<'_, '_>) -> Result<Tools, ApiError> {
    let parallel = body.flag("parallel_tool_calls")?.unwrap_or(true);
    let listed = body.list("tools")?.unwrap_or_default();
    let mut tools = ToolList::of(listed)?;
    for (index, tool) in listed.iter().enumerate() {
        add(&mut tools, tool, &format!("tools[{index}]"))?;
    }
    tools.finish(choice(body.value("tool_choice"))?, parallel)
}

fn add(tools: &mut ToolList, tool: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::of(tool, path)?;
    let kind = fields.required_text("type")?;
    if kind != "function" {
        let shown: String = kind.chars().take(40).collect();
        return Err(ApiError::unsupported(
            fields.path_of("type"),
            format!(
                "this server runs no tools itself, so only `function` tools are supported, not `{shown}`"
            ),
        ));
    }
    refuse_deferred(fields)?;
    tools.add(Tool {
        name: (fields.required_text("name")?, fields.path_of("name")),
        description: fields.text("description")?,
        schema: (fields.value("parameters"), fields.path_of("parameters")),
        strict: fields.flag("strict")?,
    })
}

fn choice(given: Option<&Value>) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice";
    let short = |text: &str| text.chars().take(40).collect::<String>();
    match given {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(ApiError::invalid(
                FIELD,
                format!(
                    "`tool_choice` is `{}`; it must be `auto`, `none`, `required` or name a function",
                    short(other)
                ),
            )),
        },
        Some(object @ Value::Object(_)) => {
            let fields = Fields::of(object, FIELD)?;
            match fields.required_text("type")? {
                "function" => Ok(ToolChoice::Named(fields.required_text("name")?.to_owned())),
                "allowed_tools" => {
                    ToolChoice::allowed(fields, |tool| Ok(tool.required_text("name")?.to_owned()))
                }
                other => Err(ApiError::unsupported(
                    "tool_choice.type",
                    format!(
                        "a `tool_choice` of the type `{}` is not supported; use `function` or `allowed_tools`",
                        short(other)
                    ),
                )),
            }
        }
        Some(other) => Err(wrong_type(FIELD, "a string or an object", other)),
    }
}
