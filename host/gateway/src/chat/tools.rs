//! The tools of a chat request and what the client says about their use.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::{Tool, ToolChoice, ToolList, Tools, refuse_deferred};

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn read(body: Fields<'_, '_>) -> Result<Tools, ApiError> {
    for obsolete in ["functions", "function_call"] {
        if body.value(obsolete).is_some() {
            return Err(ApiError::unsupported(
                obsolete,
                format!("`{obsolete}` is obsolete; send `tools` and `tool_choice`"),
            ));
        }
    }
    let parallel = body.flag("parallel_tool_calls")?.unwrap_or(true);
    let listed = body.list("tools")?.unwrap_or_default();
    let mut tools = ToolList::of(listed)?;
    for (index, tool) in listed.iter().enumerate() {
        add(&mut tools, tool, &format!("tools[{index}]"))?;
    }
    tools.finish(choice(body)?, parallel)
}

fn add(tools: &mut ToolList, tool: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::of(tool, path)?;
    if fields.required_text("type")? != "function" {
        return Err(ApiError::unsupported(
            fields.path_of("type"),
            "only tools of the type `function` are supported",
        ));
    }
    let path = fields.path_of("function");
    let function = fields
        .value("function")
        .ok_or_else(|| fields.missing("function"))?;
    let function = Fields::of(function, &path)?;
    refuse_deferred(fields)?;
    tools.add(Tool {
        name: (function.required_text("name")?, function.path_of("name")),
        description: function.text("description")?,
        schema: (function.value("parameters"), function.path_of("parameters")),
        strict: function.flag("strict")?,
    })
}

/// The name in the field `function`.
fn function_name(fields: Fields<'_, '_>) -> Result<String, ApiError> {
    let path = fields.path_of("function");
    let function = fields
        .value("function")
        .ok_or_else(|| fields.missing("function"))?;
    let name = Fields::of(function, &path)?.required_text("name")?;
    Ok(name.to_owned())
}

/// Reads `tool_choice`.
fn choice(body: Fields<'_, '_>) -> Result<ToolChoice, ApiError> {
    match body.value("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => {
                let shown: String = other.chars().take(40).collect();
                Err(ApiError::invalid(
                    "tool_choice",
                    format!(
                        "`tool_choice` is `{shown}`; it must be `auto`, `none`, `required` or name a function"
                    ),
                ))
            }
        },
        Some(given @ Value::Object(_)) => {
            let fields = Fields::of(given, "tool_choice")?;
            match fields.text("type")?.unwrap_or("function") {
                "function" => function_name(fields).map(ToolChoice::Named),
                "allowed_tools" => {
                    let allowed = fields
                        .value("allowed_tools")
                        .ok_or_else(|| fields.missing("allowed_tools"))?;
                    let path = fields.path_of("allowed_tools");
                    ToolChoice::allowed(Fields::of(allowed, &path)?, function_name)
                }
                other => {
                    let shown: String = other.chars().take(40).collect();
                    Err(ApiError::unsupported(
                        "tool_choice.type",
                        format!(
                            "a `tool_choice` of the type `{shown}` is not supported; use `function` or `allowed_tools`"
                        ),
                    ))
                }
            }
        }
        Some(other) => Err(wrong_type("tool_choice", "a string or an object", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: &Value) -> Result<Tools, ApiError> {
        read(Fields::of(body, "").unwrap())
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"a": {"type": "string"}, "b": true}, "required": ["a"],
        }}})
    }

    #[test]
    fn good_tools_reach_the_template_unchanged() {
        let tools =
            parse(&json!({"tools": [tool("read"), tool("write")], "tool_choice": "auto"})).unwrap();
        assert_eq!(tools.definitions, [tool("read"), tool("write")]);
        assert!(tools.parallel);
    }

    #[test]
    fn none_hides_the_tools_from_the_model() {
        let tools = parse(&json!({"tools": [tool("read")], "tool_choice": "none"})).unwrap();
        assert!(tools.definitions.is_empty());
    }

    #[test]
    fn a_call_can_be_asked_for() {
        let chosen = |choice: Value| {
            let body = json!({"tools": [tool("read")], "tool_choice": choice});
            parse(&body).unwrap().choice
        };
        assert_eq!(chosen(json!("required")), ToolChoice::Required);
        let named = json!({"type": "function", "function": {"name": "read"}});
        assert_eq!(chosen(named), ToolChoice::Named("read".into()));
    }

    #[test]
    fn parallel_calls_can_be_switched_off() {
        assert!(
            !parse(&json!({"parallel_tool_calls": false}))
                .unwrap()
                .parallel
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
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
            let error = parse(&body).unwrap_err();
            assert_eq!(error.status().as_u16(), 400, "{body}");
            assert_eq!(error.to_json()["error"]["param"], param, "{body}");
        }
    }

    #[test]
    fn too_many_tools_are_refused() {
        let tools: Vec<Value> = (0..=128).map(|n| tool(&format!("t{n}"))).collect();
        assert!(parse(&json!({"tools": tools})).is_err());
    }
}
