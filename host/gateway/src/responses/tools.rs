//! Tools and tool choice of a Responses request.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::parse::{Alternative, TextOr, join, required, shown};
use crate::reply::{
    AllowedMode, AllowedTool, AllowedTools, FunctionFields, ModeOr, ToolChoice, ToolList, Tools,
    reject_deferred,
};

/// The fields of a Responses request about tools.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ToolFields {
    /// Functions that the model may call.
    #[schemars(length(max = 128))]
    tools: Option<Vec<ToolField>>,
    /// `auto`, `none`, `required`, a function, or allowed tools. Default: `auto`.
    #[schemars(with = "Option<ModeOr<ChoiceFields>>")]
    tool_choice: Option<TextOr<ChoiceFields>>,
    /// Whether one reply may have several calls. Default: true.
    parallel_tool_calls: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ToolField {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    kind: String,
    #[schemars(required, regex(pattern = r"^[A-Za-z0-9_.-]{1,64}$"))]
    name: Option<String>,
    /// What the function does.
    description: Option<String>,
    /// JSON schema of the arguments, which are an object.
    #[schemars(with = "Option<Map<String, Value>>")]
    parameters: Option<Value>,
    /// Whether arguments must follow the schema exactly.
    strict: Option<bool>,
    #[schemars(skip)]
    defer_loading: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChoiceFields {
    /// `function` or `allowed_tools`.
    #[serde(rename = "type")]
    kind: String,
    /// Name of the function.
    name: Option<String>,
    /// `auto` or `required`, with `allowed_tools`.
    mode: Option<AllowedMode>,
    /// The allowed tools.
    tools: Option<Vec<AllowedTool>>,
}

impl Alternative for ChoiceFields {
    const EXPECTED: &'static str = "a string or an object";
}

/// Parses `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn parse(fields: ToolFields) -> Result<Tools, ApiError> {
    let tools = ToolList::collect(fields.tools, add)?;
    tools.finish(
        ToolChoice::parse(fields.tool_choice, parse_choice)?,
        fields.parallel_tool_calls.unwrap_or(true),
    )
}

fn add(tools: &mut ToolList, tool: ToolField, path: &str) -> Result<(), ApiError> {
    if tool.kind != "function" {
        return Err(ApiError::unsupported(
            join(path, "type"),
            format!(
                "tools of the type `{}` are not supported; this server runs no tools, use `function`",
                shown(&tool.kind)
            ),
        ));
    }
    reject_deferred(tool.defer_loading, path)?;
    let function = FunctionFields {
        name: required(tool.name, path, "name")?,
        description: tool.description,
        parameters: tool.parameters,
        strict: tool.strict,
    };
    tools.add(function, path, "parameters")
}

fn parse_choice(choice: ChoiceFields) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice";
    match choice.kind.as_str() {
        "function" => Ok(ToolChoice::Named(required(choice.name, FIELD, "name")?)),
        "allowed_tools" => AllowedTools {
            mode: required(choice.mode, FIELD, "mode")?,
            tools: required(choice.tools, FIELD, "tools")?,
        }
        .into_choice(FIELD, |tool, path| required(tool.name, path, "name")),
        other => Err(ToolChoice::unsupported_type(&shown(other))),
    }
}
