//! Tools and tool choice of a chat request.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::{Tool, ToolChoice, ToolList, Tools, reject_deferred};

/// Parses `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn parse(body: Fields<'_, '_>) -> Result<Tools, ApiError> {
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
    let mut tools = ToolList::new(listed)?;
    for (index, tool) in listed.iter().enumerate() {
        add(&mut tools, tool, &format!("tools[{index}]"))?;
    }
    tools.finish(parse_choice(body)?, parallel)
}

fn add(tools: &mut ToolList, tool: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::new(tool, path)?;
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
    let function = Fields::new(function, &path)?;
    reject_deferred(fields)?;
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
    let name = Fields::new(function, &path)?.required_text("name")?;
    Ok(name.to_owned())
}

/// Parses `tool_choice`.
fn parse_choice(body: Fields<'_, '_>) -> Result<ToolChoice, ApiError> {
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
            let fields = Fields::new(given, "tool_choice")?;
            match fields.text("type")?.unwrap_or("function") {
                "function" => function_name(fields).map(ToolChoice::Named),
                "allowed_tools" => {
                    let allowed = fields
                        .value("allowed_tools")
                        .ok_or_else(|| fields.missing("allowed_tools"))?;
                    let path = fields.path_of("allowed_tools");
                    ToolChoice::parse_allowed_tools(Fields::new(allowed, &path)?, function_name)
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

    fn parse_body(body: &Value) -> Result<Tools, ApiError> {
        parse(Fields::new(body, "").unwrap())
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
        assert_eq!(tools.definitions, [tool("read"), tool("write")]);
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
