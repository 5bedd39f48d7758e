//! The tools of a chat request and what the client says about their use.
//!
//! A schema is checked for its shape only: the template prints it, and what the model makes of it is
//! checked by the client. A choice that would need constrained decoding is refused with a clear answer.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// OpenAI's own bound on the number of tools.
const MAX_TOOLS: usize = 128;

/// The tools as the template gets them, and how calls in the reply are treated.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools {
    /// Checked definitions, in the client's order. Empty when the client allows no call.
    pub(crate) definitions: Vec<Value>,
    /// Whether one reply may hold several calls. Default: yes.
    pub(crate) parallel: bool,
}

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
    if listed.len() > MAX_TOOLS {
        return Err(ApiError::invalid(
            "tools",
            format!(
                "`tools` has {} entries; the limit is {MAX_TOOLS}",
                listed.len()
            ),
        ));
    }
    let mut names = HashSet::new();
    let mut definitions = Vec::with_capacity(listed.len());
    for (index, tool) in listed.iter().enumerate() {
        let path = format!("tools[{index}]");
        let (name, definition) = definition(tool, &path)?;
        if !names.insert(name) {
            return Err(ApiError::invalid(
                format!("{path}.function.name"),
                format!("two tools have the name `{name}`"),
            ));
        }
        definitions.push(definition);
    }
    if !may_call(body)? {
        definitions.clear();
    }
    Ok(Tools {
        definitions,
        parallel,
    })
}

/// Whether `tool_choice` leaves the model free to call (`auto`) or forbids it (`none`).
fn may_call(body: Fields<'_, '_>) -> Result<bool, ApiError> {
    let unsupported = |what: &str| {
        ApiError::unsupported(
            "tool_choice",
            format!(
                "{what} is not supported yet, because it needs constrained decoding; use `auto` or `none`"
            ),
        )
    };
    match body.value("tool_choice") {
        None => Ok(true),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(true),
            "none" => Ok(false),
            "required" => Err(unsupported("`tool_choice: required`")),
            other => {
                let shown: String = other.chars().take(40).collect();
                Err(ApiError::invalid(
                    "tool_choice",
                    format!("`tool_choice` is `{shown}`; it must be `auto` or `none`"),
                ))
            }
        },
        Some(Value::Object(_)) => Err(unsupported("a `tool_choice` that names tools")),
        Some(other) => Err(wrong_type("tool_choice", "a string or an object", other)),
    }
}

fn definition<'a>(tool: &'a Value, path: &str) -> Result<(&'a str, Value), ApiError> {
    let fields = Fields::of(tool, path)?;
    let kind = fields.required_text("type")?;
    if kind != "function" {
        return Err(ApiError::unsupported(
            fields.path_of("type"),
            "only tools of the type `function` are supported",
        ));
    }
    let path_of_function = fields.path_of("function");
    let function = fields
        .value("function")
        .ok_or_else(|| fields.missing("function"))?;
    let function = Fields::of(function, &path_of_function)?;
    let name = function.required_text("name")?;
    let well_named = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if !well_named {
        return Err(ApiError::invalid(
            function.path_of("name"),
            "the name of a tool has 1 to 64 letters, digits, `_`, `-` or `.`",
        ));
    }
    let mut out = serde_json::Map::new();
    out.insert("name".into(), name.into());
    if let Some(description) = function.text("description")? {
        out.insert("description".into(), description.into());
    }
    if let Some(parameters) = function.value("parameters") {
        check_schema(parameters, &function.path_of("parameters"))?;
        out.insert("parameters".into(), parameters.clone());
    }
    if let Some(strict) = function.flag("strict")? {
        out.insert("strict".into(), strict.into());
    }
    Ok((name, json!({"type": "function", "function": out})))
}

/// The shape of the JSON schema of a tool's parameters: an object with properties.
fn check_schema(schema: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::of(schema, path)?;
    if let Some(kind) = fields.value("type")
        && kind != "object"
    {
        return Err(ApiError::invalid(
            fields.path_of("type"),
            "the parameters of a tool are an object, so the schema's `type` must be `object`",
        ));
    }
    if let Some(properties) = fields.value("properties") {
        let path = fields.path_of("properties");
        let Value::Object(properties) = properties else {
            return Err(wrong_type(&path, "an object", properties));
        };
        for (name, property) in properties {
            if !matches!(property, Value::Object(_) | Value::Bool(_)) {
                return Err(wrong_type(
                    &format!("{path}.{name}"),
                    "a JSON schema",
                    property,
                ));
            }
        }
    }
    for (index, name) in fields
        .list("required")?
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        if !name.is_string() {
            return Err(wrong_type(
                &format!("{}[{index}]", fields.path_of("required")),
                "a string",
                name,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (
                json!({"tools": [tool("f")], "tool_choice": "required"}),
                "tool_choice",
            ),
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
        let tools: Vec<Value> = (0..=MAX_TOOLS).map(|n| tool(&format!("t{n}"))).collect();
        assert!(parse(&json!({"tools": tools})).is_err());
    }
}
