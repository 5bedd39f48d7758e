//! Validation of tool definitions, normalized to OpenAI's format for the chat template, sessions and judges.
//!
//! Only the outer structure of a schema is checked: the template prints it, and the client validates the arguments.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// OpenAI's limit of tools per request.
const MAX_TOOLS: usize = 128;

/// The tools of a request and how the model may call them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools {
    /// Validated definitions in OpenAI's format, in the client's order. Empty if the client allows no call.
    pub(crate) definitions: Vec<Value>,
    /// The tool choice.
    pub(crate) choice: ToolChoice,
    /// Whether one reply may have several calls.
    pub(crate) parallel: bool,
}

/// The tool choice of the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No call; the tools are not in the prompt.
    None,
    /// At least one call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
    /// Only the named tools are offered. [`ToolList::finish`] resolves it to `Required` or `Auto`.
    Allowed {
        /// Names of the offered tools.
        names: Vec<String>,
        /// Whether at least one call is required.
        required: bool,
    },
}

impl ToolChoice {
    /// Parses OpenAI's `allowed_tools`: `mode`, and `tools`, whose names `name` extracts.
    pub(crate) fn parse_allowed_tools(
        fields: Fields<'_, '_>,
        name: fn(Fields<'_, '_>) -> Result<String, ApiError>,
    ) -> Result<Self, ApiError> {
        let required = match fields.required_text("mode")? {
            "auto" => false,
            "required" => true,
            other => {
                let (path, shown) = (fields.path_of("mode"), other.chars().take(40));
                let shown: String = shown.collect();
                let message = format!("`{path}` is `{shown}`; it must be `auto` or `required`");
                return Err(ApiError::invalid(path, message));
            }
        };
        let path = fields.path_of("tools");
        let listed = fields
            .list("tools")?
            .ok_or_else(|| fields.missing("tools"))?;
        if listed.is_empty() {
            return Err(ApiError::invalid(
                path,
                "`tool_choice` allows no tool; use `none` for that",
            ));
        }
        let names = listed.iter().enumerate().map(|(index, tool)| {
            let path = format!("{path}[{index}]");
            let tool = Fields::new(tool, &path)?;
            match tool.text("type")? {
                None | Some("function") => name(tool),
                Some(_) => Err(ApiError::unsupported(
                    tool.path_of("type"),
                    "only tools of the type `function` are supported",
                )),
            }
        });
        Ok(Self::Allowed {
            names: names.collect::<Result<_, _>>()?,
            required,
        })
    }
}

/// An unvalidated tool. The name and the schema have the path that an error names.
pub(crate) struct Tool<'a> {
    pub(crate) name: (&'a str, String),
    pub(crate) description: Option<&'a str>,
    pub(crate) schema: (Option<&'a Value>, String),
    pub(crate) strict: Option<bool>,
}

/// Collects and validates the tools of a request.
#[derive(Default)]
pub(crate) struct ToolList {
    names: HashSet<String>,
    definitions: Vec<Value>,
}

impl ToolList {
    /// An empty list; fails if `listed` has too many tools.
    pub(crate) fn new(listed: &[Value]) -> Result<Self, ApiError> {
        if listed.len() > MAX_TOOLS {
            return Err(ApiError::invalid(
                "tools",
                format!(
                    "`tools` has {} entries; the limit is {MAX_TOOLS}",
                    listed.len()
                ),
            ));
        }
        Ok(Self::default())
    }

    /// Validates a tool and adds it.
    pub(crate) fn add(&mut self, tool: Tool<'_>) -> Result<(), ApiError> {
        let (name, path) = tool.name;
        let is_valid_name = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if !is_valid_name {
            return Err(ApiError::invalid(
                path,
                "a tool name must have 1 to 64 letters, digits, `_`, `-` or `.`",
            ));
        }
        if !self.names.insert(name.to_owned()) {
            return Err(ApiError::invalid(
                path,
                format!("duplicate tool name `{name}`"),
            ));
        }
        let mut function = serde_json::Map::new();
        function.insert("name".into(), name.into());
        if let Some(description) = tool.description {
            function.insert("description".into(), description.into());
        }
        if let (Some(schema), path) = tool.schema {
            check_schema(schema, &path)?;
            function.insert("parameters".into(), schema.clone());
        }
        if let Some(strict) = tool.strict {
            function.insert("strict".into(), strict.into());
        }
        self.definitions
            .push(json!({"type": "function", "function": function}));
        Ok(())
    }

    /// The tools with the tool choice. `parallel` allows several calls in one reply.
    pub(crate) fn finish(mut self, choice: ToolChoice, parallel: bool) -> Result<Tools, ApiError> {
        let named: &[String] = match &choice {
            ToolChoice::Named(name) => std::slice::from_ref(name),
            ToolChoice::Allowed { names, .. } => names,
            _ => &[],
        };
        if let Some(name) = named.iter().find(|name| !self.names.contains(*name)) {
            let shown: String = name.chars().take(64).collect();
            return Err(ApiError::invalid(
                "tool_choice",
                format!("`tool_choice` names `{shown}`, which is not one of `tools`"),
            ));
        }
        let choice = match choice {
            ToolChoice::Allowed { names, required } => {
                self.definitions.retain(|definition| {
                    let name = definition.pointer("/function/name").and_then(Value::as_str);
                    name.is_some_and(|name| names.iter().any(|allowed| allowed == name))
                });
                if required {
                    ToolChoice::Required
                } else {
                    ToolChoice::Auto
                }
            }
            choice => choice,
        };
        let missing = match &choice {
            ToolChoice::Required if self.names.is_empty() => {
                Some("`tool_choice` requires a call, but `tools` is empty".to_owned())
            }
            _ => None,
        };
        if let Some(missing) = missing {
            return Err(ApiError::invalid("tool_choice", missing));
        }
        Ok(Tools {
            definitions: match choice {
                ToolChoice::None => Vec::new(),
                _ => self.definitions,
            },
            choice,
            parallel,
        })
    }
}

/// Rejects `defer_loading`, which hides a tool until the model searches for it.
pub(crate) fn reject_deferred(tool: Fields<'_, '_>) -> Result<(), ApiError> {
    if tool.flag("defer_loading")?.unwrap_or(false) {
        return Err(ApiError::unsupported(
            tool.path_of("defer_loading"),
            "tool search is not supported; offer the tool, or leave it out",
        ));
    }
    Ok(())
}

/// Checks the outer structure of a parameter schema: an object with properties.
fn check_schema(schema: &Value, path: &str) -> Result<(), ApiError> {
    let fields = Fields::new(schema, path)?;
    if let Some(kind) = fields.value("type")
        && kind != "object"
    {
        return Err(ApiError::invalid(
            fields.path_of("type"),
            "the `type` of a parameter schema must be `object`",
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
