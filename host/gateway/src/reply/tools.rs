//! Validation of the tools that a request offers.
//!
//! Only the outer structure of a schema is checked: the template prints it, and the client validates the arguments.

use std::collections::{HashMap, HashSet};

use clawhost_chat::{FunctionDefinition, Tool, ToolKind};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::parse::{AnySchema, TextOr, join, parse_at, shown};

/// OpenAI's limit of tools per request.
const MAX_TOOLS: usize = 128;

/// The tools of a request and how the model may call them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools {
    /// Validated definitions in the client's order. Empty if the client allows no call.
    pub(crate) definitions: Vec<Tool>,
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
    /// OpenAI's choice: absent, a string, or an object that `parse` parses.
    pub(crate) fn parse<T>(
        choice: Option<TextOr<T>>,
        parse: fn(T) -> Result<Self, ApiError>,
    ) -> Result<Self, ApiError> {
        match choice {
            None => Ok(Self::Auto),
            Some(TextOr::Text(mode)) => Self::from_mode(&mode),
            Some(TextOr::Other(choice)) => parse(choice),
        }
    }

    fn from_mode(mode: &str) -> Result<Self, ApiError> {
        match mode {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            "required" => Ok(Self::Required),
            other => Err(ApiError::invalid(
                "tool_choice",
                format!(
                    "`tool_choice` is `{}`; it must be `auto`, `none`, `required` or name a function",
                    shown(other)
                ),
            )),
        }
    }

    /// The error for an object of another type.
    pub(crate) fn unsupported_type(kind: &str) -> ApiError {
        ApiError::unsupported(
            "tool_choice.type",
            format!(
                "a `tool_choice` of the type `{kind}` is not supported; use `function` or `allowed_tools`"
            ),
        )
    }
}

/// A mode, or an object.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ModeOr<T> {
    Mode(ToolChoiceMode),
    Object(T),
}

/// How the model may call tools.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ToolChoiceMode {
    Auto,
    None,
    Required,
}

/// OpenAI's `allowed_tools`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct AllowedTools {
    pub(crate) mode: AllowedMode,
    #[schemars(length(min = 1))]
    pub(crate) tools: Vec<AllowedTool>,
}

/// How the model may call the allowed tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum AllowedMode {
    /// The model may call one of the tools.
    Auto,
    /// The model must call one of the tools.
    Required,
}

/// One of the allowed tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct AllowedTool {
    /// Always `function`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// The function, in chat completions.
    pub(crate) function: Option<NamedFunction>,
    /// The name of the function, in responses.
    pub(crate) name: Option<String>,
}

/// The name of a function.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct NamedFunction {
    pub(crate) name: String,
}

impl AllowedTools {
    /// The choice of the allowed tools at `path`; `name` returns the name of a tool.
    pub(crate) fn into_choice(
        self,
        path: &str,
        name: fn(AllowedTool, &str) -> Result<String, ApiError>,
    ) -> Result<ToolChoice, ApiError> {
        let path = join(path, "tools");
        if self.tools.is_empty() {
            return Err(ApiError::invalid(
                path,
                "`tool_choice` allows no tool; use `none` for that",
            ));
        }
        let names = self.tools.into_iter().enumerate().map(|(index, tool)| {
            let path = format!("{path}[{index}]");
            match tool.kind.as_deref() {
                None | Some("function") => name(tool, &path),
                Some(_) => Err(ApiError::unsupported(
                    join(&path, "type"),
                    "only tools of the type `function` are supported",
                )),
            }
        });
        Ok(ToolChoice::Allowed {
            names: names.collect::<Result<_, _>>()?,
            required: self.mode == AllowedMode::Required,
        })
    }
}

/// A function that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct FunctionFields {
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,64}$"))]
    pub(crate) name: String,
    /// What the function does.
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments, which are an object.
    #[schemars(with = "Option<Map<String, Value>>")]
    pub(crate) parameters: Option<Value>,
    /// Whether arguments must follow the schema exactly.
    pub(crate) strict: Option<bool>,
}

/// The outer structure of a parameter schema.
#[derive(Debug, Deserialize)]
struct ParameterSchema {
    #[serde(rename = "type")]
    kind: Option<Value>,
    #[serde(rename = "properties")]
    _properties: Option<HashMap<String, AnySchema>>,
    #[serde(rename = "required")]
    _required: Option<Vec<String>>,
}

/// Collects and validates the tools of a request.
#[derive(Default)]
pub(crate) struct ToolList {
    names: HashSet<String>,
    definitions: Vec<Tool>,
}

impl ToolList {
    /// The list that `add` makes of the field `tools`: it gets the list, a tool and its path. Fails if the request has too
    /// many tools.
    pub(crate) fn collect<T>(
        tools: Option<Vec<T>>,
        add: fn(&mut Self, T, &str) -> Result<(), ApiError>,
    ) -> Result<Self, ApiError> {
        let tools = tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            let message = format!(
                "`tools` has {} entries; the limit is {MAX_TOOLS}",
                tools.len()
            );
            return Err(ApiError::invalid("tools", message));
        }
        let mut list = Self::default();
        for (index, tool) in tools.into_iter().enumerate() {
            add(&mut list, tool, &format!("tools[{index}]"))?;
        }
        Ok(list)
    }

    /// Validates a tool and adds it. `path` is that of the object with the fields, `schema` the name of the field with
    /// the schema of the parameters.
    pub(crate) fn add(
        &mut self,
        function: FunctionFields,
        path: &str,
        schema: &str,
    ) -> Result<(), ApiError> {
        let name = function.name;
        let is_valid_name = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if !is_valid_name {
            return Err(ApiError::invalid(
                join(path, "name"),
                "a tool name must have 1 to 64 letters, digits, `_`, `-` or `.`",
            ));
        }
        if !self.names.insert(name.clone()) {
            return Err(ApiError::invalid(
                join(path, "name"),
                format!("duplicate tool name `{name}`"),
            ));
        }
        if let Some(parameters) = &function.parameters {
            check_schema(parameters, &join(path, schema))?;
        }
        self.definitions.push(Tool {
            kind: ToolKind::Function,
            function: FunctionDefinition {
                name,
                description: function.description,
                parameters: function.parameters,
                strict: function.strict,
            },
        });
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
                self.definitions
                    .retain(|tool| names.contains(&tool.function.name));
                if required {
                    ToolChoice::Required
                } else {
                    ToolChoice::Auto
                }
            }
            choice => choice,
        };
        if choice == ToolChoice::Required && self.names.is_empty() {
            let message = "`tool_choice` requires a call, but `tools` is empty";
            return Err(ApiError::invalid("tool_choice", message));
        }
        if choice == ToolChoice::None {
            self.definitions.clear();
        }
        Ok(Tools {
            definitions: self.definitions,
            choice,
            parallel,
        })
    }
}

/// Rejects `defer_loading`, which hides a tool until the model searches for it.
pub(crate) fn reject_deferred(defer_loading: Option<bool>, path: &str) -> Result<(), ApiError> {
    if defer_loading == Some(true) {
        return Err(ApiError::unsupported(
            join(path, "defer_loading"),
            "tool search is not supported; offer the tool, or leave it out",
        ));
    }
    Ok(())
}

/// Checks the outer structure of a parameter schema: an object with properties.
fn check_schema(schema: &Value, path: &str) -> Result<(), ApiError> {
    let schema: ParameterSchema = parse_at(schema, path)?;
    if schema.kind.is_some_and(|kind| kind != "object") {
        return Err(ApiError::invalid(
            join(path, "type"),
            "the `type` of a parameter schema must be `object`",
        ));
    }
    Ok(())
}
