//! The input of a Responses request in the one form that templates, sessions and judges get, which is that of chat
//! completions.
//!
//! What the model wrote in one reply comes back as several items: thoughts, text, calls. They become one message again.

use serde_json::{Value, json};

use crate::chat::content;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Reads `instructions` and `input`, after the conversation that is continued, if any.
pub(super) fn read(
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
                conversation.add(item, &format!("input[{index}]"))?;
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
    /// A thought whose reply has not come yet.
    thought: Option<String>,
    /// The last message is a reply to which further items may belong.
    replying: bool,
}

impl Conversation {
    fn add(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let fields = Fields::of(item, path)?;
        match fields.text("type")?.unwrap_or("message") {
            "message" => self.message(fields),
            "reasoning" => self.reasoning(fields),
            "function_call" => self.call(fields),
            "function_call_output" => self.output(fields),
            "item_reference" => Err(ApiError::unsupported(
                fields.path_of("type"),
                "items are not kept by id; send the item itself, or `previous_response_id`",
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

    fn message(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
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
            self.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        // Text after calls is still the same reply.
        if let Some(reply) = self.reply()
            && reply.get("tool_calls").is_some()
            && let Some(Value::String(said)) = reply.get_mut("content")
        {
            said.push_str(&text);
            return Ok(());
        }
        self.begin_reply(&text);
        Ok(())
    }

    /// A thought: its own words where they are given, else their summary.
    fn reasoning(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let mut thought = parts(fields, "content", "reasoning_text")?;
        if thought.is_empty() {
            thought = parts(fields, "summary", "summary_text")?;
        }
        self.replying = false;
        self.thought = (!thought.is_empty()).then(|| thought.concat());
        Ok(())
    }

    fn call(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let call = json!({
            "id": fields.required_text("call_id")?,
            "type": "function",
            "function": {
                "name": fields.required_text("name")?,
                "arguments": fields.text("arguments")?.unwrap_or("{}"),
            },
        });
        if self.reply().is_none() {
            self.begin_reply("");
        }
        if let Some(Value::Object(reply)) = self.reply() {
            let calls = reply.entry("tool_calls").or_insert_with(|| json!([]));
            if let Value::Array(calls) = calls {
                calls.push(call);
            }
        }
        Ok(())
    }

    fn output(&mut self, fields: Fields<'_, '_>) -> Result<(), ApiError> {
        let id = fields.required_text("call_id")?;
        let path = fields.path_of("output");
        let text = match fields.value("output") {
            None => return Err(fields.missing("output")),
            Some(Value::String(text)) => text.clone(),
            Some(parts @ Value::Array(_)) => {
                let holder = json!({"content": parts});
                content(Fields::of(&holder, &path)?)?.unwrap_or_default()
            }
            Some(other) => {
                return Err(wrong_type(
                    &path,
                    "a string or an array of text parts",
                    other,
                ));
            }
        };
        self.push(json!({"role": "tool", "content": text, "tool_call_id": id}));
        Ok(())
    }

    fn push(&mut self, message: Value) {
        self.replying = false;
        self.thought = None;
        self.messages.push(message);
    }

    fn begin_reply(&mut self, text: &str) {
        let mut reply = json!({"role": "assistant", "content": text});
        if let (Some(thought), Some(reply)) = (self.thought.take(), reply.as_object_mut()) {
            reply.insert("reasoning_content".into(), thought.into());
        }
        self.messages.push(reply);
        self.replying = true;
    }

    /// The reply to which the next item may belong.
    fn reply(&mut self) -> Option<&mut Value> {
        if self.replying {
            self.messages.last_mut()
        } else {
            None
        }
    }
}

/// The texts of a list of parts that must all be of one type.
fn parts<'a>(fields: Fields<'a, '_>, name: &str, kind: &str) -> Result<Vec<&'a str>, ApiError> {
    let mut texts = Vec::new();
    for (index, part) in fields.list(name)?.unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{index}]", fields.path_of(name));
        let part = Fields::of(part, &path)?;
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
