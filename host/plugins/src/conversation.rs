//! Conversations, the input of plugins, as plain Rust types.
//!
//! The types mirror `interface types` of the WIT package one to one, so that generated bindings stay private to this
//! crate. They validate nothing: a judge must see text exactly as it was received, including tool-call arguments that
//! are invalid JSON.

pub use clawhost_chat::Role;
use serde::{Deserialize, Serialize};

/// Bytes with a media type, such as a screenshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// For example `image/png`.
    pub media_type: String,
    /// The bytes, decoded.
    pub data: Vec<u8>,
}

/// A piece of a message's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Visible text.
    Text(String),
    /// Hidden reasoning, present only when the policy's template exposes it.
    Reasoning(String),
    /// An image.
    Image(Blob),
    /// Anything else: its `type` and its JSON text.
    Other(String, String),
}

/// A tool call of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Links the call to the tool message that answers it.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The exact text that the policy emitted; it may be invalid JSON.
    pub arguments: String,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The author's role.
    pub role: Role,
    /// Content in order.
    #[serde(default)]
    pub content: Vec<Part>,
    /// Tool calls in this message.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// On tool messages: the id of the call that this is the result of.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// Name of the author or of the tool.
    #[serde(default)]
    pub name: Option<String>,
}

impl Message {
    /// Creates a message with one text part.
    pub fn text(role: Role, text: impl Into<String>) -> Message {
        Message {
            role,
            content: vec![Part::Text(text.into())],
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// Appends a tool call.
    pub fn push_call(
        &mut self,
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) {
        self.tool_calls.push(ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        });
    }

    /// The visible text: all text parts, joined by newlines.
    pub fn visible_text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        texts.join("\n")
    }
}

/// One response of the policy with its prompt and the messages that followed it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Zero-based position in the trajectory.
    pub index: u32,
    /// The policy's input.
    pub prompt: Vec<Message>,
    /// The policy's output.
    pub response: Message,
    /// The messages that followed: a user's reply, tool results, a new observation. May be empty.
    #[serde(default)]
    pub next_state: Vec<Message>,
    /// The response was cut off at the token limit.
    #[serde(default)]
    pub truncated: bool,
}

/// A conversation or an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// The session it belongs to.
    pub session_id: String,
    /// The task of an environment, if there is one.
    #[serde(default)]
    pub task_id: Option<String>,
    /// Shared by the samples of one prompt.
    pub group_id: String,
    /// Turns, oldest first.
    pub turns: Vec<Turn>,
    /// Reward that an environment reported before judging.
    #[serde(default)]
    pub env_reward: Option<f32>,
    /// Opaque key-value pairs; values are JSON text.
    #[serde(default)]
    pub metadata: Vec<(String, String)>,
}

impl Trajectory {
    /// Creates a trajectory without turns.
    pub fn new(session_id: impl Into<String>, group_id: impl Into<String>) -> Trajectory {
        Trajectory {
            session_id: session_id.into(),
            task_id: None,
            group_id: group_id.into(),
            turns: Vec::new(),
            env_reward: None,
            metadata: Vec::new(),
        }
    }
}
