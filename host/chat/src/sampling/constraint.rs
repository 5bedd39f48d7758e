//! The structured-output constraint of a request, as recorded.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Constraint on a reply: a response format, tool calls, or (with both) one of the two.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraint {
    /// Format of the text. Default `None`: the reply may not be text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<ResponseFormat>,
    /// Tool calls that the reply may consist of. Default `None`: the reply may not be tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<ToolCallConstraint>,
    /// The prompt ends inside a reasoning block: unconstrained reasoning comes first, and the constraint applies after
    /// the end of the block. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub after_reasoning: bool,
}

/// Format of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormat {
    /// JSON valid against this schema.
    JsonSchema(Value),
    /// A full match of this regular expression.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Constraint to tool calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallConstraint {
    /// The tools that may be called.
    pub tools: Vec<CallableTool>,
    /// Maximum number of calls in one reply; at least one is required.
    pub most: u32,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallableTool {
    /// Name of the tool.
    pub name: String,
    /// JSON schema of the arguments object. Default: any object.
    #[serde(default)]
    pub parameters: Option<Value>,
}

impl Constraint {
    /// Constrains to JSON valid against this schema.
    pub fn json_schema(schema: Value) -> Self {
        Self::response_format(ResponseFormat::JsonSchema(schema))
    }

    /// Constrains to any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(serde_json::json!({"type": "object"}))
    }

    /// Constrains to a text of this format.
    pub fn response_format(format: ResponseFormat) -> Self {
        Self {
            answer: Some(format),
            ..Self::default()
        }
    }

    /// Constrains to calls of these tools, at most `most` of them.
    pub fn tool_calls(tools: Vec<CallableTool>, most: u32) -> Self {
        Self {
            calls: Some(ToolCallConstraint { tools, most }),
            ..Self::default()
        }
    }
}
