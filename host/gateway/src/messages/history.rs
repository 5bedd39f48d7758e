//! The conversation of a messages request in the one form that templates, sessions and judges get, which is OpenAI's.
//!
//! A user message with results of tools becomes one tool message per result, beside the user message with its text.
//! An assistant message keeps thoughts, text and calls together. What cannot be represented is refused and never
//! dropped silently.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Reads `system` and `messages`.
pub(super) fn read(system: Option<&Value>, listed: &[Value]) -> Result<Vec<Value>, ApiError> {
    if listed.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` is empty; send at least one message",
        ));
    }
    let mut out = Vec::with_capacity(listed.len() + 1);
    if let Some(system) = system {
        let text = text(system, "system")?;
        if !text.is_empty() {
            out.push(json!({"role": "system", "content": text}));
        }
    }
    for (index, message) in listed.iter().enumerate() {
        let path = format!("messages[{index}]");
        let fields = Fields::of(message, &path)?;
        match fields.required_text("role")? {
            "user" => user(fields, &mut out)?,
            "assistant" => out.push(assistant(fields)?),
            "system" => {
                let content = content(fields)?;
                out.push(json!({"role": "system", "content": text(content, &fields.path_of("content"))?}));
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

fn content<'a>(fields: Fields<'a, '_>) -> Result<&'a Value, ApiError> {
    fields
        .value("content")
        .ok_or_else(|| fields.missing("content"))
}

/// The results of tools, each as its message, and the text around them.
fn user(fields: Fields<'_, '_>, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let path = fields.path_of("content");
    let blocks = match content(fields)? {
        Value::String(text) => {
            out.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(&path, "a string or an array of blocks", other)),
    };
    let mut said: Option<String> = None;
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let block = Fields::of(block, &path)?;
        match block.required_text("type")? {
            "text" => {
                let text = block.required_text("text")?;
                match &mut said {
                    Some(said) => {
                        said.push('\n');
                        said.push_str(text);
                    }
                    None => said = Some(text.to_owned()),
                }
            }
            "tool_result" => {
                if let Some(said) = said.take() {
                    out.push(json!({"role": "user", "content": said}));
                }
                out.push(tool_result(block)?);
            }
            kind => return Err(not_here(block, kind, "`text` and `tool_result`")),
        }
    }
    if let Some(said) = said {
        out.push(json!({"role": "user", "content": said}));
    } else if blocks.is_empty() {
        return Err(ApiError::invalid(path, "`content` has no blocks"));
    }
    Ok(())
}

fn tool_result(block: Fields<'_, '_>) -> Result<Value, ApiError> {
    let id = block.required_text("tool_use_id")?;
    let mut content = match block.value("content") {
        None => String::new(),
        Some(content) => text(content, &block.path_of("content"))?,
    };
    // The one form has no flag for it, so the words must say it.
    if block.flag("is_error")?.unwrap_or(false) && !content.to_ascii_lowercase().contains("error") {
        content = format!("Error: {content}");
    }
    Ok(json!({"role": "tool", "content": content, "tool_call_id": id}))
}

fn assistant(fields: Fields<'_, '_>) -> Result<Value, ApiError> {
    let path = fields.path_of("content");
    let blocks = match content(fields)? {
        Value::String(text) => return Ok(json!({"role": "assistant", "content": text})),
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(&path, "a string or an array of blocks", other)),
    };
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let block = Fields::of(block, &path)?;
        match block.required_text("type")? {
            // Blocks of one reply are pieces of one text, with calls between them.
            "text" => said.push_str(block.required_text("text")?),
            "thinking" => thought.push_str(block.required_text("thinking")?),
            // Thoughts that nobody but their author can read.
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
            kind => return Err(not_here(block, kind, "`text`, `thinking` and `tool_use`")),
        }
    }
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    message.insert("content".into(), said.into());
    if !thought.is_empty() {
        message.insert("reasoning_content".into(), thought.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    Ok(message.into())
}

/// A string, or text blocks joined by line breaks.
fn text(value: &Value, path: &str) -> Result<String, ApiError> {
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
        let block = Fields::of(block, &path)?;
        match block.required_text("type")? {
            "text" => pieces.push(block.required_text("text")?),
            kind => return Err(not_here(block, kind, "`text`")),
        }
    }
    Ok(pieces.join("\n"))
}

/// A block that does not belong where it is, or that this model cannot read.
fn not_here(block: Fields<'_, '_>, kind: &str, allowed: &str) -> ApiError {
    let path = block.path_of("type");
    let shown: String = kind.chars().take(40).collect();
    match kind {
        "image" | "document" | "search_result" | "container_upload" => ApiError::unsupported(
            path.clone(),
            format!("`{path}`: this model reads text only; `{shown}` blocks are not supported"),
        ),
        _ => ApiError::invalid(
            path.clone(),
            format!("`{path}` is `{shown}`; the blocks that can stand here are {allowed}"),
        ),
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
