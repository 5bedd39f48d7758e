//! A conversation as one type: what API requests are parsed into, templates render, sessions compare, the journal
//! stores and judges see.
//!
//! The JSON form is OpenAI's chat format. Reading is lenient about its variants (`developer`, content as text parts,
//! arguments as an object, the obsolete `function_call`), because old journals and transcripts hold them; writing has
//! one form. The validation of requests, with errors for the client, is the gateway's.

mod json;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Instructions of the application (`system` and `developer`).
    System {
        /// The instructions.
        content: Content,
        /// Name of the author.
        name: Option<String>,
    },
    /// What the person wrote.
    User {
        /// The text.
        content: Content,
        /// Name of the author.
        name: Option<String>,
    },
    /// A reply of a model.
    Assistant(AssistantMessage),
    /// The result of a tool call (`tool` and the obsolete `function`).
    Tool {
        /// The result.
        content: Content,
        /// Id of the [`ToolCall`] that it answers. Default: empty.
        tool_call_id: String,
        /// Name of the tool.
        name: Option<String>,
    },
}

/// Role of a message's author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The application.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
}

/// A reply of a model. Its JSON is that of a message with the role `assistant`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AssistantMessage {
    /// Visible text; `None` (JSON null) if the reply has tool calls only.
    pub content: Option<Content>,
    /// Text of the reasoning block.
    pub reasoning_content: Option<String>,
    /// Tool calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Why tool calls could not be parsed and stayed text, in order.
    pub malformed_tool_calls: Vec<String>,
    /// Name of the author.
    pub name: Option<String>,
}

/// Content of a message. Its JSON is a string if all parts are text, and an array of parts otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Content(Vec<ContentPart>);

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq)]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// A part that this program does not interpret, such as an image: its JSON object, passed on unchanged.
    Other(Value),
}

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// Id that the tool's result repeats; empty if unknown.
    pub id: String,
    /// Always `function`; OpenAI's format names it.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function and its arguments.
    pub function: FunctionCall,
}

/// Kind of a tool: only functions exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolKind {
    /// A function with JSON arguments.
    #[default]
    Function,
}

/// Name and arguments of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FunctionCall {
    /// Name of the tool; whether it exists is for the caller to check.
    pub name: String,
    /// JSON text of the arguments object, exactly as generated; possibly not valid JSON.
    pub arguments: String,
}

/// A tool that a request offers, in OpenAI's format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Always `function`.
    #[serde(rename = "type", default)]
    pub kind: ToolKind,
    /// The function.
    pub function: FunctionDefinition,
}

/// Name, description and parameters of a tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionDefinition {
    /// Name, unique among the tools of a request.
    pub name: String,
    /// What the tool does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of the arguments. Default: no schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Whether arguments must follow the schema exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl Message {
    /// A system message.
    pub fn system(text: impl Into<String>) -> Self {
        Self::System {
            content: Content::text(text),
            name: None,
        }
    }

    /// A user message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User {
            content: Content::text(text),
            name: None,
        }
    }

    /// An assistant message without tool calls.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Assistant(text.into().into())
    }

    /// The role.
    pub fn role(&self) -> Role {
        match self {
            Self::System { .. } => Role::System,
            Self::User { .. } => Role::User,
            Self::Assistant(_) => Role::Assistant,
            Self::Tool { .. } => Role::Tool,
        }
    }

    /// The content; `None` for an assistant message with tool calls only.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Self::System { content, .. }
            | Self::User { content, .. }
            | Self::Tool { content, .. } => Some(content),
            Self::Assistant(reply) => reply.content.as_ref(),
        }
    }

    /// The visible text; empty without content.
    pub fn text(&self) -> String {
        self.content().map(Content::to_text).unwrap_or_default()
    }

    /// The content to change; `None` for an assistant message with tool calls only.
    pub fn content_mut(&mut self) -> Option<&mut Content> {
        match self {
            Self::System { content, .. }
            | Self::User { content, .. }
            | Self::Tool { content, .. } => Some(content),
            Self::Assistant(reply) => reply.content.as_mut(),
        }
    }

    /// Tool calls; empty unless the message is the assistant's.
    pub fn tool_calls(&self) -> &[ToolCall] {
        match self {
            Self::Assistant(reply) => &reply.tool_calls,
            _ => &[],
        }
    }

    /// Name of the author, if given.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::System { name, .. } | Self::User { name, .. } | Self::Tool { name, .. } => {
                name.as_deref()
            }
            Self::Assistant(reply) => reply.name.as_deref(),
        }
    }
}

impl AssistantMessage {
    /// The visible text; empty without content.
    pub fn text(&self) -> String {
        self.content
            .as_ref()
            .map(Content::to_text)
            .unwrap_or_default()
    }
}

impl From<String> for AssistantMessage {
    /// A reply without tool calls.
    fn from(text: String) -> Self {
        Self {
            content: Some(Content::text(text)),
            ..Self::default()
        }
    }
}

impl From<&str> for AssistantMessage {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Content {
    /// Content that is one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![ContentPart::Text(text.into())])
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[ContentPart] {
        &self.0
    }

    /// The text parts, joined by line breaks.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let mut texts = self.0.iter().filter_map(|part| match part {
            ContentPart::Text(text) => Some(text.as_str()),
            ContentPart::Other(_) => None,
        });
        out.push_str(texts.next().unwrap_or(""));
        for text in texts {
            out.push('\n');
            out.push_str(text);
        }
        out
    }

    /// Adds a text part.
    pub fn push_text(&mut self, text: impl Into<String>) {
        self.0.push(ContentPart::Text(text.into()));
    }

    /// Whether all parts are text.
    pub fn is_text(&self) -> bool {
        self.0
            .iter()
            .all(|part| matches!(part, ContentPart::Text(_)))
    }
}

impl From<Vec<ContentPart>> for Content {
    fn from(parts: Vec<ContentPart>) -> Self {
        Self(parts)
    }
}

impl ToolCall {
    /// A call of the function `name` with the JSON text `arguments`.
    pub fn new(
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        Self {
            id: id.into(),
            kind: ToolKind::Function,
            function: FunctionCall {
                name: name.into(),
                arguments: arguments.into(),
            },
        }
    }
}
