//! Generated conversations.

use serde::{Deserialize, Serialize};

/// Role of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// System message, or the noise that clients put there.
    System,
    /// The user.
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
    /// The text, never empty in a generated conversation.
    pub content: String,
}

impl Message {
    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self {
            role: Role::User,
            content: content.into(),
        }
    }

    /// An assistant message.
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

    /// The message as serving renders it.
    pub fn to_chat(&self) -> clawhost_chat::Message {
        match self.role {
            Role::System => clawhost_chat::Message::system(&self.content),
            Role::User => clawhost_chat::Message::user(&self.content),
            Role::Assistant => clawhost_chat::Message::assistant(&self.content),
        }
    }
}

/// The domain of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// Word problems with small numbers.
    Homework,
    /// Comments on a student's answer.
    Grading,
    /// Greetings, questions about the model, and its limits.
    SmallTalk,
}

/// A generated conversation: an optional system message, then one to four exchanges of a user message and a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conversation {
    /// The domain.
    pub world: World,
    /// The messages in order; the last one is the assistant's.
    pub messages: Vec<Message>,
}

impl Conversation {
    /// The assistant's replies, in order.
    pub fn replies(&self) -> impl Iterator<Item = &str> {
        self.messages
            .iter()
            .filter(|m| m.role == Role::Assistant)
            .map(|m| m.content.as_str())
    }

    /// The messages as serving renders them.
    pub fn to_chat(&self) -> Vec<clawhost_chat::Message> {
        self.messages.iter().map(Message::to_chat).collect()
    }
}
