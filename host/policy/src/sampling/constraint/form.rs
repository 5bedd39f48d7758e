//! What a reply must look like.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The form of a reply: an answer, tool calls, or (with both) one of the two.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraint {
    /// Form of the text. Default none: text is no possibility.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// Calls that the reply may consist of. Default none: calls are no possibility.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Calls>,
    /// The prompt ended inside a reasoning block: whatever the model thinks comes first, and the form begins
    /// behind the block's end. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub after_reasoning: bool,
}

/// The form of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// JSON that is valid against this schema.
    JsonSchema(Value),
    /// A match of this regular expression, from beginning to end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Calls of given tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// The tools that may be called.
    pub tools: Vec<Callable>,
    /// Most calls in one reply; at least one is made.
    pub most: u32,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Callable {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments, an object. Default: any object.
    #[serde(default)]
    pub parameters: Option<Value>,
}

impl Constraint {
    /// JSON that is valid against this schema.
    pub fn json_schema(schema: Value) -> Self {
        Self::answer(Answer::JsonSchema(schema))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(serde_json::json!({"type": "object"}))
    }

    /// A text of this form.
    pub fn answer(answer: Answer) -> Self {
        Self {
            answer: Some(answer),
            ..Self::default()
        }
    }

    /// Calls of these tools, up to `most` of them.
    pub fn calls(tools: Vec<Callable>, most: u32) -> Self {
        Self {
            calls: Some(Calls { tools, most }),
            ..Self::default()
        }
    }
}
