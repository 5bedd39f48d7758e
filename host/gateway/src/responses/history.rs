//! Parses the input of a Responses request into a conversation.
//!
//! Clients send back one reply as several items (reasoning, text, function calls). They are merged into one message.

use clawhost_chat::{AssistantMessage, Content, Message, ToolCall};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::chat::{ContentPart, join_text};
use crate::error::ApiError;
use crate::parse::{TextOr, join, missing, required, shown};

/// An item of the input; which fields it needs depends on its type.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct InputItem {
    /// `message`, `function_call`, `function_call_output` or `reasoning`. Default: `message`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Author of a message: `user`, `assistant`, `system` or `developer`.
    role: Option<ItemRole>,
    /// Content of a message or reasoning: text, or text parts.
    content: Option<TextOr<Vec<ContentPart>>>,
    /// Summary of reasoning, used if it has no content.
    summary: Option<Vec<ContentPart>>,
    /// Id of a function call.
    call_id: Option<String>,
    /// Name of the called function.
    name: Option<String>,
    /// JSON with the arguments of a function call. Default: no arguments.
    arguments: Option<String>,
    /// Output of a function call: text, or text parts.
    output: Option<TextOr<Vec<ContentPart>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ItemRole {
    User,
    Assistant,
    System,
    Developer,
}

/// Converts `instructions` and `input`. `previous` is the conversation that they continue, if any.
pub(super) fn parse(
    instructions: Option<String>,
    input: Option<TextOr<Vec<InputItem>>>,
    previous: Option<Vec<Message>>,
) -> Result<Vec<Message>, ApiError> {
    let mut conversation = Conversation::default();
    conversation
        .messages
        .extend(instructions.map(Message::system));
    let continued = previous.is_some();
    conversation.messages.extend(previous.into_iter().flatten());
    match input {
        Some(TextOr::Text(text)) => conversation.messages.push(Message::user(text)),
        Some(TextOr::Other(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                conversation.push_item(item, &format!("input[{index}]"))?;
            }
        }
        None if continued => {}
        None => return Err(missing("input")),
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
    messages: Vec<Message>,
    /// Reasoning that belongs to the next assistant message.
    reasoning_text: Option<String>,
    /// Whether the last message is a reply that further items may belong to.
    reply_open: bool,
}

impl Conversation {
    fn push_item(&mut self, item: InputItem, path: &str) -> Result<(), ApiError> {
        match item.kind.as_deref() {
            None | Some("message") => self.push_message_item(item, path),
            Some("reasoning") => self.push_reasoning_item(item, path),
            Some("function_call") => self.push_function_call(item, path),
            Some("function_call_output") => self.push_function_call_output(item, path),
            Some("item_reference") => Err(ApiError::unsupported(
                join(path, "type"),
                "item references are not supported; send the item itself, or `previous_response_id`",
            )),
            Some(other) => Err(ApiError::unsupported(
                join(path, "type"),
                format!(
                    "items of the type `{}` are not supported; send message, function_call, \
                     function_call_output or reasoning",
                    shown(other)
                ),
            )),
        }
    }

    fn push_message_item(&mut self, item: InputItem, path: &str) -> Result<(), ApiError> {
        let role = required(item.role, path, "role")?;
        let content = required(item.content, path, "content")?;
        let text = join_text(&content, &join(path, "content"))?;
        match role {
            ItemRole::System | ItemRole::Developer => self.push_message(Message::system(text)),
            ItemRole::User => self.push_message(Message::user(text)),
            ItemRole::Assistant => match self.open_reply() {
                // Text after function calls belongs to the same reply.
                Some(reply) if !reply.tool_calls.is_empty() => {
                    let before = reply.content.take().unwrap_or_default();
                    reply.content = Some(Content::text(before.to_text() + &text));
                }
                _ => {
                    self.start_reply(text);
                }
            },
        }
        Ok(())
    }

    /// A reasoning item: its text if present, else its summary.
    fn push_reasoning_item(&mut self, item: InputItem, path: &str) -> Result<(), ApiError> {
        let text = match item.content {
            None => String::new(),
            Some(TextOr::Text(text)) => text,
            Some(TextOr::Other(parts)) => {
                join_parts(parts, &join(path, "content"), "reasoning_text")?
            }
        };
        let summary = item.summary.unwrap_or_default();
        let summary = join_parts(summary, &join(path, "summary"), "summary_text")?;
        self.reply_open = false;
        self.reasoning_text = [text, summary].into_iter().find(|text| !text.is_empty());
        Ok(())
    }

    fn push_function_call(&mut self, item: InputItem, path: &str) -> Result<(), ApiError> {
        let call = ToolCall::new(
            required(item.call_id, path, "call_id")?,
            required(item.name, path, "name")?,
            item.arguments.unwrap_or_else(|| "{}".to_owned()),
        );
        let reply = if self.reply_open {
            self.open_reply().expect("a reply is open")
        } else {
            self.start_reply(String::new())
        };
        reply.tool_calls.push(call);
        Ok(())
    }

    fn push_function_call_output(&mut self, item: InputItem, path: &str) -> Result<(), ApiError> {
        let tool_call_id = required(item.call_id, path, "call_id")?;
        let output = required(item.output, path, "output")?;
        let text = join_text(&output, &join(path, "output"))?;
        self.push_message(Message::Tool {
            content: Content::text(text),
            tool_call_id,
            name: None,
        });
        Ok(())
    }

    fn push_message(&mut self, message: Message) {
        self.reply_open = false;
        self.reasoning_text = None;
        self.messages.push(message);
    }

    fn start_reply(&mut self, text: String) -> &mut AssistantMessage {
        self.messages.push(Message::Assistant(AssistantMessage {
            content: Some(Content::text(text)),
            reasoning_content: self.reasoning_text.take(),
            ..AssistantMessage::default()
        }));
        self.reply_open = true;
        self.open_reply().expect("the reply was just started")
    }

    /// The reply that the next item may belong to.
    fn open_reply(&mut self) -> Option<&mut AssistantMessage> {
        match self.messages.last_mut() {
            Some(Message::Assistant(reply)) if self.reply_open => Some(reply),
            _ => None,
        }
    }
}

/// The text of parts that must all have the type `kind`.
fn join_parts(parts: Vec<ContentPart>, path: &str, kind: &str) -> Result<String, ApiError> {
    let texts = parts.into_iter().enumerate().map(|(index, part)| {
        let path = format!("{path}[{index}]");
        if part.kind != kind {
            let path = join(&path, "type");
            let message = format!("`{path}` must be `{kind}`");
            return Err(ApiError::invalid(path, message));
        }
        required(part.text, &path, "text")
    });
    texts.collect()
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
