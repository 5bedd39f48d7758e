//! Tools and tool choice of a messages request.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::parse::{join, missing, required, shown};
use crate::reply::{FunctionFields, ToolChoice, ToolList, Tools, reject_deferred};

/// The fields of a messages request about tools.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ToolFields {
    /// Tools that the model may use.
    #[schemars(length(max = 128))]
    tools: Option<Vec<ToolField>>,
    /// Default: `auto`.
    tool_choice: Option<ChoiceFields>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ToolField {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["custom", null]))]
    kind: Option<String>,
    #[schemars(required, regex(pattern = r"^[A-Za-z0-9_.-]{1,64}$"))]
    name: Option<String>,
    /// What the tool does.
    description: Option<String>,
    /// JSON schema of the input, which is an object.
    #[schemars(required, with = "Option<Map<String, Value>>")]
    input_schema: Option<Value>,
    /// Whether the input must follow the schema exactly.
    strict: Option<bool>,
    #[schemars(skip)]
    defer_loading: Option<bool>,
    #[schemars(skip)]
    input_examples: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChoiceFields {
    #[serde(rename = "type")]
    kind: ChoiceKind,
    /// Name of the tool, with the type `tool`.
    name: Option<String>,
    /// Allows one call per reply.
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ChoiceKind {
    /// The model decides.
    Auto,
    /// At least one call of any tool.
    Any,
    /// A call of the named tool.
    Tool,
    /// No call.
    None,
}

/// Parses `tools` and `tool_choice`.
pub(super) fn parse(fields: ToolFields) -> Result<Tools, ApiError> {
    let tools = ToolList::collect(fields.tools, add)?;
    let (choice, parallel) = parse_choice(fields.tool_choice)?;
    tools.finish(choice, parallel)
}

fn add(tools: &mut ToolList, tool: ToolField, path: &str) -> Result<(), ApiError> {
    if let Some(kind) = tool.kind.filter(|kind| kind != "custom") {
        let path = join(path, "type");
        let message = format!(
            "`{path}` is `{}`; only tools with a schema of their own (`custom`) are supported",
            shown(&kind)
        );
        return Err(ApiError::unsupported(path, message));
    }
    if tool.input_schema.is_none() {
        return Err(missing(&join(path, "input_schema")));
    }
    reject_deferred(tool.defer_loading, path)?;
    if tool
        .input_examples
        .is_some_and(|examples| !examples.is_empty())
    {
        return Err(ApiError::unsupported(
            join(path, "input_examples"),
            "`input_examples` is not supported; put the examples into the description",
        ));
    }
    let function = FunctionFields {
        name: required(tool.name, path, "name")?,
        description: tool.description,
        parameters: tool.input_schema,
        strict: tool.strict,
    };
    tools.add(function, path, "input_schema")
}

/// Parses `tool_choice`; the flag allows several calls in one reply.
fn parse_choice(choice: Option<ChoiceFields>) -> Result<(ToolChoice, bool), ApiError> {
    let Some(fields) = choice else {
        return Ok((ToolChoice::Auto, true));
    };
    let choice = match fields.kind {
        ChoiceKind::Auto => ToolChoice::Auto,
        ChoiceKind::Any => ToolChoice::Required,
        ChoiceKind::None => ToolChoice::None,
        ChoiceKind::Tool => ToolChoice::Named(required(fields.name, "tool_choice", "name")?),
    };
    Ok((choice, fields.disable_parallel_tool_use != Some(true)))
}
