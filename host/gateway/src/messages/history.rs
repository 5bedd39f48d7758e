//! Converts the conversation of a messages request to OpenAI's format, which templates, sessions and judges use.
//!
//! A user message with tool results becomes one tool message per result, and user messages with the text around them. An
//! assistant message keeps thinking, text and tool calls together. Unsupported content is rejected, never dropped.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Parses `system` and `messages`.
pub(super) fn parse(system: Option<&Value>, listed: &[Value]) -> Result<Vec<Value>, ApiError> {
    if listed.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` is empty; send at least one message",
        ));
    }
    let mut out = Vec::with_capacity(listed.len() + 1);
    if let Some(system) = system {
        let text = parse_text(system, "system")?;
        if !text.is_empty() {
            out.push(json!({"role": "system", "content": text}));
        }
    }
    for (index, message) in listed.iter().enumerate() {
        let path = format!("messages[{index}]");
        let fields = Fields::new(message, &path)?;
        match fields.required_text("role")? {
            "user" => parse_user(fields, &mut out)?,
            "assistant" => out.push(parse_assistant(fields)?),
            "system" => {
                let content = required_content(fields)?;
                out.push(json!({"role": "system", "content": parse_text(content, &fields.path_of("content"))?}));
            }
            other => {
                let shown: String = other.chars().take(40).collect();
                return Err(ApiError::invalid(
                    fields.path_of("role"),
                    format!(
                        "`{}`: the role `{shown}` is unknown; the roles are user and assistant, and instructions \
                         go into `system`",
                        fields.path_of("role")
                    ),
                ));
            }
        }
    }
    Ok(out)
}

fn required_content<'a>(fields: Fields<'a, '_>) -> Result<&'a Value, ApiError> {
    fields
        .value("content")
        .ok_or_else(|| fields.missing("content"))
}

/// Converts a user message: each tool result becomes a message, as does the text around them.
fn parse_user(fields: Fields<'_, '_>, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let path = fields.path_of("content");
    let blocks = match required_content(fields)? {
        Value::String(text) => {
            out.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(&path, "a string or an array of blocks", other)),
    };
    let mut text_so_far: Option<String> = None;
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let block = Fields::new(block, &path)?;
        match block.required_text("type")? {
            "text" => {
                let text = block.required_text("text")?;
                match &mut text_so_far {
                    Some(text_so_far) => {
                        text_so_far.push('\n');
                        text_so_far.push_str(text);
                    }
                    None => text_so_far = Some(text.to_owned()),
                }
            }
            "tool_result" => {
                if let Some(text_so_far) = text_so_far.take() {
                    out.push(json!({"role": "user", "content": text_so_far}));
                }
                out.push(parse_tool_result(block)?);
            }
            kind => return Err(unexpected_block(block, kind, "`text` and `tool_result`")),
        }
    }
    if let Some(text_so_far) = text_so_far {
        out.push(json!({"role": "user", "content": text_so_far}));
    } else if blocks.is_empty() {
        return Err(ApiError::invalid(path, "`content` has no blocks"));
    }
    Ok(())
}

fn parse_tool_result(block: Fields<'_, '_>) -> Result<Value, ApiError> {
    let id = block.required_text("tool_use_id")?;
    let mut content = match block.value("content") {
        None => String::new(),
        Some(content) => parse_text(content, &block.path_of("content"))?,
    };
    // OpenAI's format has no error flag, so the text must say it.
    if block.flag("is_error")?.unwrap_or(false) && !content.to_ascii_lowercase().contains("error") {
        content = format!("Error: {content}");
    }
    Ok(json!({"role": "tool", "content": content, "tool_call_id": id}))
}

fn parse_assistant(fields: Fields<'_, '_>) -> Result<Value, ApiError> {
    let path = fields.path_of("content");
    let blocks = match required_content(fields)? {
        Value::String(text) => return Ok(json!({"role": "assistant", "content": text})),
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(&path, "a string or an array of blocks", other)),
    };
    let (mut text_so_far, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let block = Fields::new(block, &path)?;
        match block.required_text("type")? {
            // Text blocks of one reply are parts of one text, with calls between them.
            "text" => text_so_far.push_str(block.required_text("text")?),
            "thinking" => reasoning.push_str(block.required_text("thinking")?),
            // Encrypted for Anthropic's models; other models cannot read it.
            "redacted_thinking" => {}
            "tool_use" => {
                let input = match block.value("input") {
                    None => json!({}),
                    Some(input @ Value::Object(_)) => input.clone(),
                    Some(other) => {
                        return Err(wrong_type(&block.path_of("input"), "an object", other));
                    }
                };
                calls.push(json!({
                    "id": block.required_text("id")?,
                    "type": "function",
                    "function": {"name": block.required_text("name")?, "arguments": input.to_string()},
                }));
            }
            kind => {
                return Err(unexpected_block(
                    block,
                    kind,
                    "`text`, `thinking` and `tool_use`",
                ));
            }
        }
    }
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    message.insert("content".into(), text_so_far.into());
    if !reasoning.is_empty() {
        message.insert("reasoning_content".into(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    Ok(message.into())
}

/// Parses a string, or text blocks joined by line breaks.
fn parse_text(value: &Value, path: &str) -> Result<String, ApiError> {
    let blocks = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        other => {
            return Err(wrong_type(
                path,
                "a string or an array of text blocks",
                other,
            ));
        }
    };
    let mut pieces = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let block = Fields::new(block, &path)?;
        match block.required_text("type")? {
            "text" => pieces.push(block.required_text("text")?),
            kind => return Err(unexpected_block(block, kind, "`text`")),
        }
    }
    Ok(pieces.join("\n"))
}

/// The error for a block type that is not allowed here, or not supported by the model.
fn unexpected_block(block: Fields<'_, '_>, kind: &str, allowed: &str) -> ApiError {
    let path = block.path_of("type");
    let shown: String = kind.chars().take(40).collect();
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
