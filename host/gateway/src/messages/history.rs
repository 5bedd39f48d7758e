//! Parses the conversation of a messages request.
//!
//! A user message with tool results becomes one tool message per result, and user messages with the text around them. An
//! assistant message keeps thinking, text and tool calls together. Unsupported content is rejected, never dropped.

use clawhost_chat::{AssistantMessage, Content, Message, ToolCall};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::parse::{TextOr, join, required, shown};

/// A message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct TurnFields {
    role: TurnRole,
    /// Text, or blocks.
    content: TextOr<Vec<Block>>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum TurnRole {
    User,
    Assistant,
    #[schemars(skip)]
    System,
}

/// A block of a content; which fields it needs depends on its type.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessageBlock")]
pub(crate) struct Block {
    /// `text`; in user messages also `tool_result`; in assistant messages also `thinking`, `redacted_thinking` and
    /// `tool_use`.
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    /// Id of a `tool_use`.
    id: Option<String>,
    /// Name of the tool of a `tool_use`.
    name: Option<String>,
    /// Input of a `tool_use`.
    input: Option<Map<String, Value>>,
    /// The `tool_use` that a `tool_result` answers.
    tool_use_id: Option<String>,
    /// Content of a `tool_result`: text, or text blocks.
    content: Option<TextOr<Vec<Block>>>,
    /// Whether a `tool_result` is an error.
    is_error: Option<bool>,
}

/// Converts `system` and `messages`.
pub(super) fn parse(
    system: Option<TextOr<Vec<Block>>>,
    listed: Vec<TurnFields>,
) -> Result<Vec<Message>, ApiError> {
    if listed.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` is empty; send at least one message",
        ));
    }
    let mut out = Vec::with_capacity(listed.len() + 1);
    if let Some(system) = system {
        let text = join_text(system, "system")?;
        if !text.is_empty() {
            out.push(Message::system(text));
        }
    }
    for (index, message) in listed.into_iter().enumerate() {
        let path = format!("messages[{index}].content");
        match message.role {
            TurnRole::User => parse_user(message.content, &path, &mut out)?,
            TurnRole::Assistant => out.push(parse_assistant(message.content, &path)?),
            TurnRole::System => out.push(Message::system(join_text(message.content, &path)?)),
        }
    }
    Ok(out)
}

/// Converts a user message: each tool result becomes a message, as does the text around them.
fn parse_user(
    content: TextOr<Vec<Block>>,
    path: &str,
    out: &mut Vec<Message>,
) -> Result<(), ApiError> {
    let blocks = match content {
        TextOr::Text(text) => {
            out.push(Message::user(text));
            return Ok(());
        }
        TextOr::Other(blocks) => blocks,
    };
    if blocks.is_empty() {
        return Err(ApiError::invalid(path, "`content` has no blocks"));
    }
    let mut texts: Vec<String> = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        match block.kind.as_str() {
            "text" => texts.push(required(block.text, &path, "text")?),
            "tool_result" => {
                push_user(&mut texts, out);
                out.push(parse_tool_result(block, &path)?);
            }
            kind => return Err(unexpected_block(kind, &path, "`text` and `tool_result`")),
        }
    }
    push_user(&mut texts, out);
    Ok(())
}

/// Moves the texts, if any, into a user message.
fn push_user(texts: &mut Vec<String>, out: &mut Vec<Message>) {
    if !texts.is_empty() {
        out.push(Message::user(texts.join("\n")));
        texts.clear();
    }
}

fn parse_tool_result(block: Block, path: &str) -> Result<Message, ApiError> {
    let id = required(block.tool_use_id, path, "tool_use_id")?;
    let mut content = match block.content {
        None => String::new(),
        Some(content) => join_text(content, &join(path, "content"))?,
    };
    // A tool message has no error flag, so the text must say it.
    if block.is_error == Some(true) && !content.to_ascii_lowercase().contains("error") {
        content = format!("Error: {content}");
    }
    Ok(Message::Tool {
        content: Content::text(content),
        tool_call_id: id,
        name: None,
    })
}

fn parse_assistant(content: TextOr<Vec<Block>>, path: &str) -> Result<Message, ApiError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(Message::assistant(text)),
        TextOr::Other(blocks) => blocks,
    };
    let (mut text_so_far, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        match block.kind.as_str() {
            // Text blocks of one reply are parts of one text, with calls between them.
            "text" => text_so_far.push_str(&required(block.text, &path, "text")?),
            "thinking" => reasoning.push_str(&required(block.thinking, &path, "thinking")?),
            // Encrypted for Anthropic's models; other models cannot read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(ToolCall::new(
                required(block.id, &path, "id")?,
                required(block.name, &path, "name")?,
                Value::from(block.input.unwrap_or_default()).to_string(),
            )),
            kind => {
                return Err(unexpected_block(
                    kind,
                    &path,
                    "`text`, `thinking` and `tool_use`",
                ));
            }
        }
    }
    Ok(Message::Assistant(AssistantMessage {
        content: Some(Content::text(text_so_far)),
        reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
        tool_calls: calls,
        ..AssistantMessage::default()
    }))
}

/// A text, or text blocks joined by line breaks.
fn join_text(content: TextOr<Vec<Block>>, path: &str) -> Result<String, ApiError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(text),
        TextOr::Other(blocks) => blocks,
    };
    let pieces = blocks.into_iter().enumerate().map(|(index, block)| {
        let path = format!("{path}[{index}]");
        match block.kind.as_str() {
            "text" => required(block.text, &path, "text"),
            kind => Err(unexpected_block(kind, &path, "`text`")),
        }
    });
    Ok(pieces.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// The error for a block type that is not allowed here, or not supported by the model.
fn unexpected_block(kind: &str, path: &str, allowed: &str) -> ApiError {
    let path = join(path, "type");
    let shown = shown(kind);
    match kind {
        "image" | "document" | "search_result" | "container_upload" => ApiError::unsupported(
            path.clone(),
            format!("`{path}`: this model reads text only; `{shown}` blocks are not supported"),
        ),
        _ => ApiError::invalid(
            path.clone(),
            format!("`{path}` is `{shown}`; the allowed block types are {allowed}"),
        ),
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
