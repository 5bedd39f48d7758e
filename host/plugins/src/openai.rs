//! Conversion between the host's conversations and the messages that components see.
//!
//! The JSON of both directions is OpenAI's chat format, read and written by `clawhost_chat`.

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, Engine as _};
use clawhost_chat as chat;
use clawhost_chat::{AssistantMessage, Content, ContentPart};
use serde_json::{Value, json};

use crate::capability::model::ToolSpec;
use crate::conversation::{Blob, Message, Part, Role, ToolCall, Trajectory, Turn};

impl From<&chat::Message> for Message {
    fn from(message: &chat::Message) -> Self {
        let (content, tool_call_id) = match message {
            chat::Message::Assistant(reply) => return reply.into(),
            chat::Message::Tool {
                content,
                tool_call_id,
                ..
            } => (content, Some(tool_call_id.clone())),
            chat::Message::System { content, .. } | chat::Message::User { content, .. } => {
                (content, None)
            }
        };
        Self {
            role: message.role(),
            content: content.parts().iter().map(Part::from).collect(),
            tool_calls: Vec::new(),
            tool_call_id: tool_call_id.filter(|id| !id.is_empty()),
            name: message.name().map(str::to_owned),
        }
    }
}

impl From<&AssistantMessage> for Message {
    fn from(reply: &AssistantMessage) -> Self {
        let reasoning = reply
            .reasoning_content
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| Part::Reasoning(text.clone()));
        let visible = reply.content.iter().flat_map(Content::parts);
        Self {
            role: Role::Assistant,
            content: reasoning.chain(visible.map(Part::from)).collect(),
            tool_calls: reply
                .tool_calls
                .iter()
                .map(|call| ToolCall {
                    id: call.id.clone(),
                    name: call.function.name.clone(),
                    arguments: call.function.arguments.clone(),
                })
                .collect(),
            tool_call_id: None,
            name: reply.name.clone(),
        }
    }
}

impl From<&ContentPart> for Part {
    fn from(part: &ContentPart) -> Self {
        let value = match part {
            ContentPart::Text(text) => return Self::Text(text.clone()),
            ContentPart::Other(value) => value,
        };
        let kind = value.get("type").and_then(Value::as_str).unwrap_or("");
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        match kind {
            "reasoning" | "thinking" => {
                if let Some(text) = text("text").or_else(|| text("thinking")) {
                    return Self::Reasoning(text.to_owned());
                }
            }
            "image_url" => {
                let image = value.get("image_url");
                let url =
                    image.and_then(|image| image.as_str().or_else(|| image.get("url")?.as_str()));
                if let Some(blob) = url.and_then(parse_data_url) {
                    return Self::Image(blob);
                }
            }
            _ => {}
        }
        Self::Other(kind.to_owned(), value.to_string())
    }
}

/// The inverse of the conversion to a component's message. Several reasoning parts become one text.
impl From<&Message> for chat::Message {
    fn from(message: &Message) -> Self {
        let mut reasoning: Vec<&str> = Vec::new();
        let mut visible = Vec::new();
        for part in &message.content {
            visible.push(match part {
                Part::Reasoning(text) => {
                    reasoning.push(text);
                    continue;
                }
                Part::Text(text) => ContentPart::Text(text.clone()),
                Part::Image(blob) => {
                    let data = STANDARD.encode(&blob.data);
                    let url = format!("data:{};base64,{data}", blob.media_type);
                    ContentPart::Other(json!({"type": "image_url", "image_url": {"url": url}}))
                }
                Part::Other(kind, text) => ContentPart::Other(
                    serde_json::from_str(text)
                        .unwrap_or_else(|_| json!({"type": kind, "value": text})),
                ),
            });
        }
        let content = Content::from(visible);
        let name = message.name.clone();
        match message.role {
            Role::System => Self::System { content, name },
            Role::User => Self::User { content, name },
            Role::Tool => Self::Tool {
                content,
                tool_call_id: message.tool_call_id.clone().unwrap_or_default(),
                name,
            },
            Role::Assistant => Self::Assistant(AssistantMessage {
                content: Some(content),
                reasoning_content: (!reasoning.is_empty()).then(|| reasoning.join("\n")),
                tool_calls: message
                    .tool_calls
                    .iter()
                    .map(|call| chat::ToolCall::new(&call.id, &call.name, &call.arguments))
                    .collect(),
                malformed_tool_calls: Vec::new(),
                name,
            }),
        }
    }
}

/// Parameters that are invalid JSON become an empty schema.
impl From<&ToolSpec> for chat::Tool {
    fn from(tool: &ToolSpec) -> Self {
        Self {
            kind: chat::ToolKind::Function,
            function: chat::FunctionDefinition {
                name: tool.name.clone(),
                description: Some(tool.description.clone()),
                parameters: Some(
                    serde_json::from_str(&tool.parameters).unwrap_or_else(|_| json!({})),
                ),
                strict: None,
            },
        }
    }
}

impl Message {
    /// The message in OpenAI's format.
    pub fn to_openai(&self) -> Value {
        serde_json::to_value(chat::Message::from(self)).expect("messages are plain JSON")
    }

    /// Converts messages of the host.
    pub fn from_chat(messages: &[chat::Message]) -> Vec<Self> {
        messages.iter().map(Self::from).collect()
    }
}

impl ToolSpec {
    /// The tool in OpenAI's format.
    pub fn to_openai(&self) -> Value {
        serde_json::to_value(chat::Tool::from(self)).expect("tools are plain JSON")
    }
}

impl Trajectory {
    /// Appends a turn and returns its index.
    pub fn push(
        &mut self,
        prompt: Vec<Message>,
        response: Message,
        next_state: Vec<Message>,
        truncated: bool,
    ) -> u32 {
        let index = u32::try_from(self.turns.len()).expect("a conversation has fewer turns");
        self.turns.push(Turn {
            index,
            prompt,
            response,
            next_state,
            truncated,
        });
        index
    }
}

/// Parses a base64 data URL (`data:image/png;base64,…`); returns none for any other URL.
fn parse_data_url(url: &str) -> Option<Blob> {
    let (head, body) = url.strip_prefix("data:")?.split_once(',')?;
    let media_type = head.strip_suffix(";base64")?;
    Some(Blob {
        media_type: media_type.to_owned(),
        data: decode_base64(body)?,
    })
}

/// Accepts both base64 alphabets, with or without padding, because clients differ.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    [alphabet::STANDARD, alphabet::URL_SAFE]
        .iter()
        .find_map(|alphabet| GeneralPurpose::new(alphabet, lenient).decode(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: Value) -> Message {
        Message::from(&serde_json::from_value::<chat::Message>(value).unwrap())
    }

    #[test]
    fn strings_parts_tools_and_images_are_converted() {
        let text = parse(json!({"role": "developer", "content": "be kind"}));
        assert_eq!(text, Message::text(Role::System, "be kind"));

        let parts = parse(json!({"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID/w=="}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ]}));
        assert_eq!(parts.visible_text(), "look");
        assert_eq!(
            parts.content[1],
            Part::Image(Blob {
                media_type: "image/png".into(),
                data: vec![1, 2, 3, 255]
            })
        );
        assert!(matches!(&parts.content[2], Part::Other(kind, _) if kind == "image_url"));

        let call = parse(
            json!({"role": "assistant", "content": null, "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":"}}]}),
        );
        assert_eq!(call.content, vec![Part::Reasoning("hm".into())]);
        assert_eq!(call.tool_calls[0].arguments, "{\"a\":");

        let tool = parse(json!({"role": "tool", "tool_call_id": "c1", "content": "3"}));
        assert_eq!(
            (tool.role, tool.tool_call_id.as_deref()),
            (Role::Tool, Some("c1"))
        );
    }

    #[test]
    fn messages_round_trip() {
        for value in [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]}),
            json!({"role": "tool", "tool_call_id": "a", "content": "7"}),
            json!({"role": "assistant", "reasoning_content": "hm", "content": "yes"}),
            json!({"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQI="}},
                {"type": "file", "file": {"id": "f"}}]}),
        ] {
            assert_eq!(parse(value.clone()).to_openai(), value);
        }
    }
}
