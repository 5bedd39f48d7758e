//! Converts the input of a Responses request to chat completions' format, which templates, sessions and judges use.
//!
//! Clients send back one reply as several items (reasoning, text, function calls). They are merged into one message.

use serde_json::{Value, json};

use crate::chat::content;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Parses `instructions` and `input`. `previous` is the conversation that they continue, if any.
pub(super) fn parse(
    body: Fields<'_, '_>,
    previous: Option<Vec<Value>>,
) -> Result<Vec<Value>, ApiError> {
    let mut conversation = Conversation::default();
    if let Some(instructions) = body.text("instructions")? {
        let instructions = json!({"role": "system", "content": instructions});
        conversation.messages.push(instructions);
    }
    let continued = previous.is_some();
    conversation.messages.extend(previous.unwrap_or_default());
    match body.value("input") {
        Some(Value::String(text)) => {
            let message = json!({"role": "user", "content": text});
            conversation.messages.push(message);
        }
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                conversation.push_item(item, &format!("input[{index}]"))?;
            }
        }
        Some(other) => return Err(wrong_type("input", "a string or an array of items", other)),
        None if continued => {}
        None => return Err(body.missing("input")),
    }
    if conversation.messages.is_empty() {
        return Err(ApiError::invalid(
            "input",
            "`input` is empty; send at least one item",
        ));
    }
    Ok(conversation.messages)
}

/// The messages so far.
#[derive(Default)]
struct Conversation {
    messages: Vec<Value>,
    /// Reasoning that belongs to the next assistant message.
    reasoning_text: Option<String>,
    /// Whether the last message is a reply that further items may belong to.
    reply_open: bool,
}

impl Conversation {
    fn push_item(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let fields = Fields::new(item, path)?;
        match fields.text("type")?.unwrap_or("message") {
            "message" => self.push_message_item(fields),
            "reasoning" => self.push_reasoning_item(fields),
            "function_call" => self.push_function_call(fields),
            "function_call_output" => self.push_function_call_output(fields),
            "item_reference" => Err(ApiError::unsupported(
                fields.path_of("type"),
                "item references are not supported; send the item itself, or `previous_response_id`",
            )),
            other => {
                let shown: String = other.chars().take(40).collect();
                Err(ApiError::unsupported(
                    fields.path_of("type"),
                    format!(
                        "items of the type `{shown}` are not supported; send message, function_call, \
                         function_call_output or reasoning"
                    ),
                ))
            }
        }
    }

    fn push_message_item(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let role = match fields.required_text("role")? {
            "system" | "developer" => "system",
            role @ ("user" | "assistant") => role,
            other => {
                let shown: String = other.chars().take(40).collect();
                return Err(ApiError::invalid(
                    fields.path_of("role"),
                    format!(
                        "the role `{shown}` is unknown; the roles are user, assistant, system and developer"
                    ),
                ));
            }
        };
        let text = content(fields)?.ok_or_else(|| fields.missing("content"))?;
        if role != "assistant" {
            self.push_message(json!({"role": role, "content": text}));
            return Ok(());
        }
        // Text after function calls belongs to the same reply.
        if let Some(reply) = self.open_reply()
            && reply.get("tool_calls").is_some()
            && let Some(Value::String(content)) = reply.get_mut("content")
        {
            content.push_str(&text);
            return Ok(());
        }
        self.start_reply(&text);
        Ok(())
    }

    /// A reasoning item: its text if present, else its summary.
    fn push_reasoning_item(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let mut reasoning_text = parse_parts(fields, "content", "reasoning_text")?;
        if reasoning_text.is_empty() {
            reasoning_text = parse_parts(fields, "summary", "summary_text")?;
        }
        self.reply_open = false;
        self.reasoning_text = (!reasoning_text.is_empty()).then(|| reasoning_text.concat());
        Ok(())
    }

    fn push_function_call(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let call = json!({
            "id": fields.required_text("call_id")?,
            "type": "function",
            "function": {
                "name": fields.required_text("name")?,
                "arguments": fields.text("arguments")?.unwrap_or("{}"),
            },
        });
        if self.open_reply().is_none() {
            self.start_reply("");
        }
        if let Some(Value::Object(reply)) = self.open_reply() {
            let calls = reply.entry("tool_calls").or_insert_with(|| json!([]));
            if let Value::Array(calls) = calls {
                calls.push(call);
            }
        }
        Ok(())
    }

    fn push_function_call_output(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let id = fields.required_text("call_id")?;
        let path = fields.path_of("output");
        let text = match fields.value("output") {
            None => return Err(fields.missing("output")),
            Some(Value::String(text)) => text.clone(),
            Some(parts @ Value::Array(_)) => {
                let holder = json!({"content": parts});
                content(Fields::new(&holder, &path)?)?.unwrap_or_default()
            }
            Some(other) => {
                return Err(wrong_type(
                    &path,
                    "a string or an array of text parts",
                    other,
                ));
            }
        };
        self.push_message(json!({"role": "tool", "content": text, "tool_call_id": id}));
        Ok(())
    }

    fn push_message(&mut self, message: Value) {
        self.reply_open = false;
        self.reasoning_text = None;
        self.messages.push(message);
    }

    fn start_reply(&mut self, text: &str) {
        let mut reply = json!({"role": "assistant", "content": text});
        if let (Some(reasoning_text), Some(reply)) =
            (self.reasoning_text.take(), reply.as_object_mut())
        {
            reply.insert("reasoning_content".into(), reasoning_text.into());
        }
        self.messages.push(reply);
        self.reply_open = true;
    }

    /// The reply that the next item may belong to.
    fn open_reply(&mut self) -> Option<&mut Value> {
        if self.reply_open {
            self.messages.last_mut()
        } else {
            None
        }
    }
}

/// Parses the texts of a list of parts that must all have the type `kind`.
fn parse_parts<'a>(
    fields: Fields<'a, '_>,
    name: &str,
    kind: &str,
) -> Result<Vec<&'a str>, ApiError> {
    let mut texts = Vec::new();
    for (index, part) in fields.list(name)?.unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{index}]", fields.path_of(name));
        let part = Fields::new(part, &path)?;
        if part.required_text("type")? != kind {
            return Err(ApiError::invalid(
                part.path_of("type"),
                format!("`{}` must be `{kind}`", part.path_of("type")),
            ));
        }
        texts.push(part.required_text("text")?);
    }
    Ok(texts)
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
