//! Tools and tool choice of a chat request.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::ApiError;
use crate::parse::{Alternative, TextOr, join, required, shown};
use crate::reply::{
    AllowedTools, FunctionFields, ModeOr, NamedFunction, ToolChoice, ToolList, Tools,
    reject_deferred,
};

/// The fields of a chat request about tools.
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
    #[schemars(skip)]
    functions: Option<serde_json::Value>,
    #[schemars(skip)]
    function_call: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ToolField {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    kind: String,
    #[schemars(required)]
    function: Option<FunctionFields>,
    #[schemars(skip)]
    defer_loading: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChoiceFields {
    /// `function` or `allowed_tools`. Default: `function`.
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<NamedFunction>,
    allowed_tools: Option<AllowedTools>,
}

impl Alternative for ChoiceFields {
    const EXPECTED: &'static str = "a string or an object";
}

/// Parses `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn parse(fields: ToolFields) -> Result<Tools, ApiError> {
    for (obsolete, is_set) in [
        ("functions", fields.functions.is_some()),
        ("function_call", fields.function_call.is_some()),
    ] {
        if is_set {
            return Err(ApiError::unsupported(
                obsolete,
                format!("`{obsolete}` is obsolete; send `tools` and `tool_choice`"),
            ));
        }
    }
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
            "only tools of the type `function` are supported",
        ));
    }
    let function = required(tool.function, path, "function")?;
    reject_deferred(tool.defer_loading, path)?;
    tools.add(function, &join(path, "function"), "parameters")
}

/// Parses `tool_choice`.
fn parse_choice(choice: ChoiceFields) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice";
    match choice.kind.as_deref() {
        None | Some("function") => {
            required(choice.function, FIELD, "function").map(|named| ToolChoice::Named(named.name))
        }
        Some("allowed_tools") => {
            let allowed = required(choice.allowed_tools, FIELD, "allowed_tools")?;
            allowed.into_choice("tool_choice.allowed_tools", |tool, path| {
                required(tool.function, path, "function").map(|named| named.name)
            })
        }
        Some(other) => Err(ToolChoice::unsupported_type(&shown(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse_body(body: &Value) -> Result<Tools, ApiError> {
        parse(crate::parse::parse(body)?)
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"a": {"type": "string"}, "b": true}, "required": ["a"],
        }}})
    }

    #[test]
    fn valid_tools_are_passed_to_the_template_unchanged() {
        let tools =
            parse_body(&json!({"tools": [tool("read"), tool("write")], "tool_choice": "auto"}))
                .unwrap();
        assert_eq!(
            json!(tools.definitions),
            json!([tool("read"), tool("write")])
        );
        assert!(tools.parallel);
    }

    #[test]
    fn tool_choice_none_removes_the_tools() {
        let tools = parse_body(&json!({"tools": [tool("read")], "tool_choice": "none"})).unwrap();
        assert!(tools.definitions.is_empty());
    }

    #[test]
    fn tool_choice_can_require_a_call() {
        let chosen = |choice: Value| {
            let body = json!({"tools": [tool("read")], "tool_choice": choice});
            parse_body(&body).unwrap().choice
        };
        assert_eq!(chosen(json!("required")), ToolChoice::Required);
        let named = json!({"type": "function", "function": {"name": "read"}});
        assert_eq!(chosen(named), ToolChoice::Named("read".into()));
    }

    #[test]
    fn parallel_tool_calls_can_be_disabled() {
        assert!(
            !parse_body(&json!({"parallel_tool_calls": false}))
                .unwrap()
                .parallel
        );
    }

    #[test]
    fn invalid_fields_are_named_in_param() {
        let function =
            |function: Value| json!({"tools": [{"type": "function", "function": function}]});
        let rows = [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": ["x"]}), "tools[0]"),
            (
                json!({"tools": [{"function": {"name": "f"}}]}),
                "tools[0].type",
            ),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (
                json!({"tools": [{"type": "function"}]}),
                "tools[0].function",
            ),
            (function(json!({})), "tools[0].function.name"),
            (function(json!({"name": "a b"})), "tools[0].function.name"),
            (function(json!({"name": ""})), "tools[0].function.name"),
            (
                function(json!({"name": "f", "description": 3})),
                "tools[0].function.description",
            ),
            (
                function(json!({"name": "f", "parameters": "x"})),
                "tools[0].function.parameters",
            ),
            (
                function(json!({"name": "f", "parameters": {"type": "array"}})),
                "tools[0].function.parameters.type",
            ),
            (
                function(json!({"name": "f", "parameters": {"properties": []}})),
                "tools[0].function.parameters.properties",
            ),
            (
                function(json!({"name": "f", "parameters": {"properties": {"a": "string"}}})),
                "tools[0].function.parameters.properties.a",
            ),
            (
                function(json!({"name": "f", "parameters": {"required": [1]}})),
                "tools[0].function.parameters.required[0]",
            ),
            (
                json!({"tools": [tool("f"), tool("f")]}),
                "tools[1].function.name",
            ),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (
                json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
                "tool_choice",
            ),
            (json!({"tool_choice": "any"}), "tool_choice"),
            (json!({"tool_choice": 3}), "tool_choice"),
            (json!({"functions": []}), "functions"),
            (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        ];
        for (body, param) in rows {
            let error = parse_body(&body).unwrap_err();
            assert_eq!(error.status().as_u16(), 400, "{body}");
            assert_eq!(error.to_json()["error"]["param"], param, "{body}");
        }
    }

    #[test]
    fn too_many_tools_are_rejected() {
        let tools: Vec<Value> = (0..=128).map(|n| tool(&format!("t{n}"))).collect();
        assert!(parse_body(&json!({"tools": tools})).is_err());
    }
}
