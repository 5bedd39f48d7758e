//! What a world produces: who said what, in order.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Standing instructions, or the noise that clients put there.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The role's name in the chat template.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, never empty in a generated conversation.
    pub content: String,
}

impl Message {
    /// A message of the person.
    pub fn user(content: impl Into<String>) -> Self {
        Self {
            role: Role::User,
            content: content.into(),
        }
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self {
            role: Role::Assistant,
            content: content.into(),
        }
    }

    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self {
            role: Role::System,
            content: content.into(),
        }
    }

    /// The message as clients send it: `{"role", "content"}`.
    pub fn to_json(&self) -> Value {
        json!({ "role": self.role.as_str(), "content": self.content })
    }
}

/// Which world a conversation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// Word problems with small numbers.
    Homework,
    /// Comments on a student's answer.
    Grading,
    /// Greetings, who are you, and what the model cannot do.
    SmallTalk,
}

/// A generated conversation: an optional system message, then one to four exchanges, each a user
/// message and the reply to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conversation {
    /// The world it was drawn from.
    pub world: World,
    /// The messages in order; the last one is the model's.
    pub messages: Vec<Message>,
}

impl Conversation {
    /// The replies of the model, in order.
    pub fn replies(&self) -> impl Iterator<Item = &str> {
        self.messages
            .iter()
            .filter(|m| m.role == Role::Assistant)
            .map(|m| m.content.as_str())
    }

    /// The messages as clients send them.
    pub fn to_json(&self) -> Vec<Value> {
        self.messages.iter().map(Message::to_json).collect()
    }
}
