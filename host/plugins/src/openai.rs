//! Parses and writes OpenAI chat messages, the format of conversations in the journal.
//!
//! Parsing accepts content as a string or as parts, reads `developer` as `system` and preserves unknown part types. A
//! message without a known role is an error.

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, Engine as _};
use serde_json::Value;

use crate::capability::model::ToolSpec;
use crate::conversation::{Blob, Message, Part, Role, ToolCall, Trajectory, Turn};

/// The value is not an OpenAI chat message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The value is not a JSON object.
    #[error("a chat message must be a JSON object, not {0}")]
    NotAnObject(&'static str),
    /// The list of messages is not a JSON array.
    #[error("chat messages must be a JSON array, not {0}")]
    NotAList(&'static str),
    /// The role is missing or unknown.
    #[error(
        "unknown chat message role {0:?}; known roles are system, developer, user, assistant, tool, function"
    )]
    UnknownRole(String),
}

impl Message {
    /// Parses one OpenAI chat message.
    ///
    /// # Errors
    /// [`MessageError`] when the value is not an object or has no known role.
    pub fn from_openai(value: &Value) -> Result<Message, MessageError> {
        let Some(object) = value.as_object() else {
            return Err(MessageError::NotAnObject(json_kind(value)));
        };
        let role = match object.get("role").and_then(Value::as_str) {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool" | "function") => Role::Tool,
            other => return Err(MessageError::UnknownRole(other.unwrap_or("").to_owned())),
        };
        let string = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        let mut content = Vec::new();
        for key in ["reasoning_content", "reasoning"] {
            if let Some(text) = string(key).filter(|text| !text.is_empty()) {
                content.push(Part::Reasoning(text));
                break;
            }
        }
        match object.get("content") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => content.push(Part::Text(text.clone())),
            Some(Value::Array(parts)) => content.extend(parts.iter().map(parse_part)),
            Some(other) => {
                content.push(Part::Other(json_kind(other).to_owned(), other.to_string()))
            }
        }
        if let Some(refusal) = string("refusal").filter(|text| !text.is_empty()) {
            content.push(Part::Text(refusal));
        }
        let mut tool_calls: Vec<ToolCall> = object
            .get("tool_calls")
            .and_then(Value::as_array)
            .map(|calls| calls.iter().map(parse_tool_call).collect())
            .unwrap_or_default();
        if let Some(function) = object.get("function_call").filter(|call| call.is_object()) {
            tool_calls.push(parse_function("", function));
        }
        Ok(Message {
            role,
            content,
            tool_calls,
            tool_call_id: string("tool_call_id"),
            name: string("name"),
        })
    }

    /// Parses a JSON array of messages; `null` is an empty list.
    ///
    /// # Errors
    /// [`MessageError`] when the value is not an array, or for the first invalid message.
    pub fn list_from_openai(value: &Value) -> Result<Vec<Message>, MessageError> {
        match value {
            Value::Null => Ok(Vec::new()),
            Value::Array(messages) => messages.iter().map(Message::from_openai).collect(),
            other => Err(MessageError::NotAList(json_kind(other))),
        }
    }
}

impl Message {
    /// Converts the message to OpenAI's format. Content that is one text part becomes a string; reasoning becomes
    /// `reasoning_content`.
    pub fn to_openai(&self) -> Value {
        let mut object = serde_json::Map::new();
        let role = match self.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        object.insert("role".to_owned(), role.into());
        let reasoning: Vec<&str> = self
            .content
            .iter()
            .filter_map(|part| match part {
                Part::Reasoning(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        if !reasoning.is_empty() {
            object.insert("reasoning_content".to_owned(), reasoning.join("\n").into());
        }
        let visible: Vec<&Part> = self
            .content
            .iter()
            .filter(|part| !matches!(part, Part::Reasoning(_)))
            .collect();
        let content = match visible.as_slice() {
            [] => Value::String(String::new()),
            [Part::Text(text)] => Value::String(text.clone()),
            parts => parts.iter().map(|part| part_to_openai(part)).collect(),
        };
        object.insert("content".to_owned(), content);
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(|call| {
                serde_json::json!({"id": call.id, "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}})
            });
            object.insert("tool_calls".to_owned(), calls.collect());
        }
        for (key, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                object.insert(key.to_owned(), value.clone().into());
            }
        }
        Value::Object(object)
    }
}

impl ToolSpec {
    /// Converts the tool to OpenAI's format. Parameters that are invalid JSON become an empty schema.
    pub fn to_openai(&self) -> Value {
        let parameters: Value =
            serde_json::from_str(&self.parameters).unwrap_or_else(|_| serde_json::json!({}));
        serde_json::json!({"type": "function", "function":
            {"name": self.name, "description": self.description, "parameters": parameters}})
    }
}

/// The inverse of [`parse_part`].
fn part_to_openai(part: &Part) -> Value {
    match part {
        Part::Text(text) | Part::Reasoning(text) => {
            serde_json::json!({"type": "text", "text": text})
        }
        Part::Image(blob) => {
            let data = STANDARD.encode(&blob.data);
            let url = format!("data:{};base64,{data}", blob.media_type);
            serde_json::json!({"type": "image_url", "image_url": {"url": url}})
        }
        Part::Other(kind, json) => serde_json::from_str(json)
            .unwrap_or_else(|_| serde_json::json!({"type": kind, "value": json})),
    }
}

impl Trajectory {
    /// Creates a trajectory of one turn from OpenAI messages: `prompt` and `next_state` are arrays of messages or null,
    /// `reply` is the assistant's message.
    ///
    /// # Errors
    /// [`MessageError`] for the first value that is not a chat message.
    pub fn from_openai(
        session_id: impl Into<String>,
        group_id: impl Into<String>,
        prompt: &Value,
        reply: &Value,
        next_state: &Value,
        truncated: bool,
    ) -> Result<Trajectory, MessageError> {
        let mut trajectory = Trajectory::new(session_id, group_id);
        trajectory.push_openai(prompt, reply, next_state, truncated)?;
        Ok(trajectory)
    }

    /// Appends a turn from OpenAI messages and returns its index.
    ///
    /// # Errors
    /// As [`Trajectory::from_openai`]; on an error the trajectory is unchanged.
    pub fn push_openai(
        &mut self,
        prompt: &Value,
        reply: &Value,
        next_state: &Value,
        truncated: bool,
    ) -> Result<u32, MessageError> {
        let index = u32::try_from(self.turns.len()).unwrap_or(u32::MAX);
        let turn = Turn {
            index,
            prompt: Message::list_from_openai(prompt)?,
            response: Message::from_openai(reply)?,
            next_state: Message::list_from_openai(next_state)?,
            truncated,
        };
        self.turns.push(turn);
        Ok(index)
    }
}

fn parse_part(part: &Value) -> Part {
    if let Value::String(text) = part {
        return Part::Text(text.clone());
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("");
    let text = |key: &str| part.get(key).and_then(Value::as_str);
    match kind {
        "text" | "input_text" | "output_text" | "refusal" => {
            if let Some(text) = text("text").or_else(|| text("refusal")) {
                return Part::Text(text.to_owned());
            }
        }
        "reasoning" | "thinking" => {
            if let Some(text) = text("text").or_else(|| text("thinking")) {
                return Part::Reasoning(text.to_owned());
            }
        }
        "image_url" => {
            let url = part
                .get("image_url")
                .and_then(|image| image.as_str().or_else(|| image.get("url")?.as_str()));
            if let Some(blob) = url.and_then(parse_data_url) {
                return Part::Image(blob);
            }
        }
        _ => {}
    }
    Part::Other(kind.to_owned(), part.to_string())
}

fn parse_tool_call(call: &Value) -> ToolCall {
    let id = call.get("id").and_then(Value::as_str).unwrap_or("");
    parse_function(id, call.get("function").unwrap_or(call))
}

fn parse_function(id: &str, function: &Value) -> ToolCall {
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    ToolCall {
        id: id.to_owned(),
        name: function
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned(),
        arguments,
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

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn strings_parts_tools_and_images_are_parsed() {
        let text =
            Message::from_openai(&json!({"role": "developer", "content": "be kind"})).unwrap();
        assert_eq!(text, Message::text(Role::System, "be kind"));

        let parts = Message::from_openai(&json!({"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID/w=="}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ]}))
        .unwrap();
        assert_eq!(parts.visible_text(), "look");
        assert_eq!(
            parts.content[1],
            Part::Image(Blob {
                media_type: "image/png".into(),
                data: vec![1, 2, 3, 255]
            })
        );
        assert!(matches!(&parts.content[2], Part::Other(kind, _) if kind == "image_url"));

        let call = Message::from_openai(&json!({"role": "assistant", "content": null, "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":"}}]}))
        .unwrap();
        assert_eq!(call.content, vec![Part::Reasoning("hm".into())]);
        assert_eq!(call.tool_calls[0].arguments, "{\"a\":");

        let tool =
            Message::from_openai(&json!({"role": "tool", "tool_call_id": "c1", "content": "3"}))
                .unwrap();
        assert_eq!(
            (tool.role, tool.tool_call_id.as_deref()),
            (Role::Tool, Some("c1"))
        );
    }

    #[test]
    fn invalid_messages_are_rejected_and_leave_the_trajectory_unchanged() {
        assert_eq!(
            Message::from_openai(&json!({"role": "robot", "content": "x"})),
            Err(MessageError::UnknownRole("robot".into()))
        );
        assert_eq!(
            Message::from_openai(&json!("hi")),
            Err(MessageError::NotAnObject("a string"))
        );
        let mut trajectory = Trajectory::new("s", "g");
        let reply = json!({"role": "assistant", "content": "ok"});
        assert!(
            trajectory
                .push_openai(&json!({}), &reply, &Value::Null, false)
                .is_err()
        );
        assert!(trajectory.turns.is_empty());
        assert_eq!(
            trajectory.push_openai(&json!([]), &reply, &Value::Null, true),
            Ok(0)
        );
        assert!(trajectory.turns[0].truncated && trajectory.turns[0].next_state.is_empty());
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
            let message = Message::from_openai(&value).unwrap();
            assert_eq!(message.to_openai(), value);
        }
    }
}
