//! The JSON form of messages: OpenAI's, read leniently and written in one way.

use minijinja::value::Serde;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{
    AssistantMessage, Content, ContentPart, FunctionCall, Message, Role, ToolCall, ToolKind,
};
use crate::python_format;

/// The written form of a message: the fields of all roles, in order.
#[derive(Serialize)]
struct WrittenMessage<'a> {
    role: Role,
    content: Option<&'a Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [ToolCall],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    malformed_tool_calls: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tool_call_id = match self {
            Self::Assistant(reply) => return reply.serialize(serializer),
            Self::Tool { tool_call_id, .. } => {
                Some(tool_call_id.as_str()).filter(|id| !id.is_empty())
            }
            Self::System { .. } | Self::User { .. } => None,
        };
        WrittenMessage {
            role: self.role(),
            content: self.content(),
            reasoning_content: None,
            tool_calls: &[],
            malformed_tool_calls: &[],
            tool_call_id,
            name: self.name(),
        }
        .serialize(serializer)
    }
}

impl Serialize for AssistantMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WrittenMessage {
            role: Role::Assistant,
            content: self.content.as_ref(),
            reasoning_content: self.reasoning_content.as_deref(),
            tool_calls: &self.tool_calls,
            malformed_tool_calls: &self.malformed_tool_calls,
            tool_call_id: None,
            name: self.name.as_deref(),
        }
        .serialize(serializer)
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_text() {
            return serializer.serialize_str(&self.to_text());
        }
        serializer.collect_seq(self.0.iter().map(|part| match part {
            ContentPart::Text(text) => serde_json::json!({"type": "text", "text": text}),
            ContentPart::Other(value) => value.clone(),
        }))
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let content = match Value::deserialize(deserializer)? {
            Value::Null => Vec::new(),
            Value::String(text) => vec![ContentPart::Text(text)],
            Value::Array(parts) => parts.into_iter().map(ContentPart::from_json).collect(),
            part @ Value::Object(_) => vec![ContentPart::from_json(part)],
            other => {
                return Err(D::Error::custom(format!(
                    "the content of a message is {other}; expected a string or an array of parts"
                )));
            }
        };
        Ok(Self(content))
    }
}

impl ContentPart {
    /// Reads a part as clients write it: a string, or an object with `type`.
    fn from_json(part: Value) -> Self {
        let kind = part.get("type").and_then(Value::as_str);
        let text = match (&part, kind) {
            (Value::String(text), _) => Some(text.as_str()),
            (_, None | Some("text" | "input_text" | "output_text")) => {
                part.get("text").and_then(Value::as_str)
            }
            (_, Some("refusal")) => part.get("refusal").and_then(Value::as_str),
            _ => None,
        };
        match text {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Other(part),
        }
    }
}

/// The fields of a message in any of the forms that are read.
#[derive(Deserialize)]
struct RawMessage {
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    reasoning_content: Option<String>,
    /// Text of the reasoning block; some clients send settings here, which are ignored.
    #[serde(default)]
    reasoning: Value,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    function_call: Option<FunctionCall>,
    #[serde(default)]
    malformed_tool_calls: Option<Vec<String>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

impl RawMessage {
    fn into_assistant(self) -> AssistantMessage {
        let mut tool_calls = self.tool_calls.unwrap_or_default();
        tool_calls.extend(self.function_call.map(|function| ToolCall {
            id: String::new(),
            kind: ToolKind::Function,
            function,
        }));
        AssistantMessage {
            content: self.content.or(self.refusal.map(Content::text)),
            reasoning_content: self
                .reasoning_content
                .or_else(|| Some(self.reasoning.as_str()?.to_owned())),
            tool_calls,
            malformed_tool_calls: self.malformed_tool_calls.unwrap_or_default(),
            name: self.name,
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawMessage::deserialize(deserializer)?;
        match raw.role.as_deref() {
            Some("system" | "developer") => Ok(Self::System {
                content: raw.content.unwrap_or_default(),
                name: raw.name,
            }),
            Some("user") => Ok(Self::User {
                content: raw.content.unwrap_or_default(),
                name: raw.name,
            }),
            Some("tool" | "function") => Ok(Self::Tool {
                content: raw.content.unwrap_or_default(),
                tool_call_id: raw.tool_call_id.unwrap_or_default(),
                name: raw.name,
            }),
            Some("assistant") => Ok(Self::Assistant(raw.into_assistant())),
            Some(other) => Err(D::Error::custom(format!(
                "unknown role `{other}`; the roles are system, developer, user, assistant and tool"
            ))),
            None => Err(D::Error::missing_field("role")),
        }
    }
}

/// Reads a message whose role is `assistant` or absent: some client libraries leave it out.
impl<'de> Deserialize<'de> for AssistantMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawMessage::deserialize(deserializer)?;
        match raw.role.as_deref() {
            None | Some("assistant") => Ok(raw.into_assistant()),
            Some(other) => Err(D::Error::custom(format!(
                "the role of a reply is `{other}`; expected assistant"
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for FunctionCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            name: String,
            #[serde(default)]
            arguments: Value,
        }
        let raw = Raw::deserialize(deserializer)?;
        Ok(Self {
            name: raw.name,
            arguments: match raw.arguments {
                Value::Null => "{}".to_owned(),
                Value::String(text) => text,
                other => json_dumps(&other),
            },
        })
    }
}

/// JSON text as Python's `json.dumps` writes it, which templates print for arguments that are an object.
fn json_dumps(value: &Value) -> String {
    // Only deeper nesting than serde_json reads is an error.
    python_format::dumps(&minijinja::Value::from(Serde(value))).expect("JSON has a Python form")
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default)]
            id: Option<String>,
            function: FunctionCall,
        }
        let raw = Raw::deserialize(deserializer)?;
        Ok(Self {
            id: raw.id.unwrap_or_default(),
            kind: ToolKind::Function,
            function: raw.function,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn normalized_messages_keep_their_json() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u", "name": "ann"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":  1}"}}]},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "assistant", "content": "<tool", "malformed_tool_calls": ["not a call"]},
        ]);
        let read: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), messages);
        assert_eq!(read[2].tool_calls()[0].function.name, "f");
        assert_eq!(read[3].content().unwrap().to_text(), "3");
        let reply: AssistantMessage = serde_json::from_value(messages[2].clone()).unwrap();
        assert_eq!(read[2], Message::Assistant(reply.clone()));
        assert_eq!(serde_json::to_value(&reply).unwrap(), messages[2]);
    }

    #[test]
    fn variants_of_the_format_are_read_as_one() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let messages: Vec<Message> = serde_json::from_value(json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": "no"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 2}}}]},
            {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        ]))
        .unwrap();
        assert_eq!(
            messages[0],
            Message::System {
                content: Content(vec![
                    ContentPart::Text("a".into()),
                    ContentPart::Text("b".into())
                ]),
                name: None,
            }
        );
        assert_eq!(json!(messages[0])["content"], "a\nb");
        assert_eq!(messages[1], Message::assistant("no"));
        assert_eq!(messages[2].tool_calls()[0].function.arguments, "{\"b\": 2}");
        assert_eq!(messages[3].content().unwrap().to_text(), "see");
        assert_eq!(json!(messages[3])["content"][1], image);
    }

    #[test]
    fn messages_without_a_known_role_are_rejected() {
        for message in [
            json!({"content": "x"}),
            json!({"role": "robot"}),
            json!("x"),
        ] {
            assert!(
                serde_json::from_value::<Message>(message.clone()).is_err(),
                "{message}"
            );
        }
    }
}
