//! The tools that the model may call, checked, in the one form that templates, sessions and judges get.
//!
//! A schema is checked for its shape only: the template prints it, and what the model makes of it is
//! checked by the client.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// OpenAI's own bound on the number of tools.
const MAX_TOOLS: usize = 128;

/// The tools as the template gets them, and how calls in the reply are treated.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools {
    /// Checked definitions in OpenAI's form, in the client's order. Empty when the client allows no call.
    pub(crate) definitions: Vec<Value>,
    /// Whether the client asks for a call.
    pub(crate) choice: ToolChoice,
    /// Whether one reply may hold several calls.
    pub(crate) parallel: bool,
}

/// What the client says about calling.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No call; the model does not learn of the tools.
    None,
    /// At least one call, of any tool.
    Required,
    /// A call of this tool.
    Named(String),
    /// The other tools are as if they were not there. Becomes one of those above when the tools are known.
    Allowed {
        /// Names of the tools that may be called.
        names: Vec<String>,
        /// At least one call.
        required: bool,
    },
}

impl ToolChoice {
    /// Reads what `allowed_tools` has in both dialects of OpenAI: `mode`, and `tools`, from which `name` takes the name.
    pub(crate) fn allowed(
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
            let tool = Fields::of(tool, &path)?;
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

/// A tool as a dialect spells it, not checked yet. Each part goes with the path that a refusal names.
pub(crate) struct Tool<'a> {
    pub(crate) name: (&'a str, String),
    pub(crate) description: Option<&'a str>,
    pub(crate) schema: (Option<&'a Value>, String),
    pub(crate) strict: Option<bool>,
}

/// Collects the tools of a request.
#[derive(Default)]
pub(crate) struct ToolList {
    names: HashSet<String>,
    definitions: Vec<Value>,
}

impl ToolList {
    /// Refuses lists that are too long before anybody reads them.
    pub(crate) fn of(listed: &[Value]) -> Result<Self, ApiError> {
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

    /// Checks a tool and adds it.
    pub(crate) fn add(&mut self, tool: Tool<'_>) -> Result<(), ApiError> {
        let (name, path) = tool.name;
        let well_named = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if !well_named {
            return Err(ApiError::invalid(
                path,
                "the name of a tool has 1 to 64 letters, digits, `_`, `-` or `.`",
            ));
        }
        if !self.names.insert(name.to_owned()) {
            return Err(ApiError::invalid(
                path,
                format!("two tools have the name `{name}`"),
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

    /// The tools with what the client says about calling them. `parallel` lets one reply hold several calls.
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
                Some("`tool_choice` requires a call, and there are no `tools`".to_owned())
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

/// Refuses a tool that the model should not learn of before it searches for it.
pub(crate) fn refuse_deferred(tool: Fields<'_, '_>) -> Result<(), ApiError> {
    if tool.flag("defer_loading")?.unwrap_or(false) {
        return Err(ApiError::unsupported(
            tool.path_of("defer_loading"),
            "the server has no search for tools; offer the tool, or leave it out",
        ));
    }
    Ok(())
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
