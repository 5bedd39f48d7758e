//! Converts the messages of a chat request into the typed conversation.
//!
//! OpenAI allows several representations of the same conversation; they are parsed into one. Unsupported content (images,
//! audio, files, obsolete roles) is rejected, never dropped.

use clawhost_chat::{AssistantMessage, Content, Message, ToolCall};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::parse::{TextOr, join, missing, required, shown};

/// A message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatMessage {
    /// `developer` is the same as `system`.
    role: ChatRole,
    /// Text, or text parts, which are joined by line breaks. Assistant and tool messages may have none.
    content: Option<TextOr<Vec<ContentPart>>>,
    /// Name of the author.
    name: Option<String>,
    /// Id of the call that a tool message answers.
    tool_call_id: Option<String>,
    /// Reasoning of an assistant message.
    reasoning_content: Option<String>,
    /// The same under another name. Some clients send an object with settings here, which is ignored.
    reasoning: Option<Value>,
    /// Replaces the content of an assistant message.
    refusal: Option<String>,
    /// Tool calls of an assistant message.
    tool_calls: Option<Vec<CallFields>>,
    #[schemars(skip)]
    function_call: Option<Value>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    #[schemars(skip)]
    Function,
}

/// A part of a content.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ContentPart {
    /// `text`, `input_text`, `output_text` or `refusal`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    refusal: Option<String>,
}

/// A tool call of an assistant message.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SentToolCall")]
struct CallFields {
    /// Default: empty.
    id: Option<String>,
    /// Always `function`.
    #[serde(rename = "type")]
    kind: Option<String>,
    function: CalledFunction,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct CalledFunction {
    name: String,
    /// JSON as text, or an object. Default: no arguments.
    arguments: Option<TextOr<Map<String, Value>>>,
}

/// Converts the messages of a request.
pub(crate) fn parse(messages: Vec<ChatMessage>) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` is empty; send at least one message",
        ));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| parse_message(message, &format!("messages[{index}]")))
        .collect()
}

fn parse_message(message: ChatMessage, path: &str) -> Result<Message, ApiError> {
    let place = join(path, "content");
    let content = message.content.as_ref();
    let content = content.map(|content| join_text(content, &place));
    let content = content.transpose()?;
    let required_content = |content: Option<String>| {
        let content = content.ok_or_else(|| missing(&place));
        content.map(Content::text)
    };
    Ok(match message.role {
        ChatRole::System | ChatRole::Developer => Message::System {
            content: required_content(content)?,
            name: message.name,
        },
        ChatRole::User => Message::User {
            content: required_content(content)?,
            name: message.name,
        },
        ChatRole::Assistant => Message::Assistant(parse_assistant(message, content, path)?),
        ChatRole::Tool => Message::Tool {
            content: Content::text(content.unwrap_or_default()),
            tool_call_id: required(message.tool_call_id, path, "tool_call_id")?,
            name: message.name,
        },
        ChatRole::Function => {
            return Err(ApiError::unsupported(
                join(path, "role"),
                "the role `function` is obsolete; send the result with the role `tool` and its `tool_call_id`",
            ));
        }
    })
}

fn parse_assistant(
    message: ChatMessage,
    content: Option<String>,
    path: &str,
) -> Result<AssistantMessage, ApiError> {
    if message.function_call.is_some() {
        return Err(ApiError::unsupported(
            join(path, "function_call"),
            "`function_call` is obsolete; send `tool_calls`",
        ));
    }
    let reasoning = message.reasoning_content.or(match message.reasoning {
        Some(Value::String(reasoning)) => Some(reasoning),
        _ => None,
    });
    let calls = message.tool_calls.into_iter().flatten().enumerate();
    Ok(AssistantMessage {
        // The content of a reply with tool calls alone is empty.
        content: Some(Content::text(
            content.or(message.refusal).unwrap_or_default(),
        )),
        reasoning_content: reasoning,
        tool_calls: calls
            .map(|(index, call)| parse_call(call, &format!("{path}.tool_calls[{index}]")))
            .collect::<Result<_, _>>()?,
        name: message.name,
        ..AssistantMessage::default()
    })
}

fn parse_call(call: CallFields, path: &str) -> Result<ToolCall, ApiError> {
    if call.kind.is_some_and(|kind| kind != "function") {
        return Err(ApiError::unsupported(
            join(path, "type"),
            "only tool calls of the type `function` are supported",
        ));
    }
    // The arguments are kept verbatim, because the model generated them, valid JSON or not.
    let arguments = match call.function.arguments {
        None => "{}".to_owned(),
        Some(TextOr::Text(text)) => text,
        Some(TextOr::Other(object)) => Value::from(object).to_string(),
    };
    Ok(ToolCall::new(
        call.id.unwrap_or_default(),
        call.function.name,
        arguments,
    ))
}

/// The content at `path` as one string; text parts are joined by line breaks.
pub(crate) fn join_text(
    content: &TextOr<Vec<ContentPart>>,
    path: &str,
) -> Result<String, ApiError> {
    let parts = match content {
        TextOr::Text(text) => return Ok(text.clone()),
        TextOr::Other(parts) => parts,
    };
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let path = format!("{path}[{index}]");
        match part.kind.as_str() {
            "text" | "input_text" | "output_text" => required(part.text.as_deref(), &path, "text"),
            "refusal" => required(part.refusal.as_deref(), &path, "refusal"),
            kind @ ("image_url" | "input_image" | "image" | "input_audio" | "file"
            | "video_url") => Err(ApiError::unsupported(
                join(&path, "type"),
                format!("this model reads text only; `{kind}` parts are not supported"),
            )),
            other => Err(ApiError::invalid(
                join(&path, "type"),
                format!(
                    "content parts of the type `{}` are unknown; send `text` parts",
                    shown(other)
                ),
            )),
        }
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::parse_at;

    fn parse(messages: &Value) -> Result<Vec<Message>, ApiError> {
        super::parse(parse_at(messages, "messages")?)
    }

    fn rejected(messages: Value) -> (String, String) {
        let error = parse(&messages).unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
        let param = error.to_json()["error"]["param"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        (param, error.to_string())
    }

    fn accepted(messages: Value) -> Value {
        json!(parse(&messages).unwrap())
    }

    #[test]
    fn normalized_messages_are_unchanged() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u", "name": "ann"},
            {"role": "assistant", "content": "a"},
        ]);
        assert_eq!(accepted(messages.clone()), messages);
    }

    #[test]
    fn developer_becomes_system_and_text_parts_are_joined() {
        let out = accepted(json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]));
        assert_eq!(out, json!([{"role": "system", "content": "a\nb"}]));
    }

    #[test]
    fn tool_call_arguments_are_kept_verbatim() {
        let out = accepted(json!([
            {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":  1}"}},
                {"id": "c2", "function": {"name": "g", "arguments": {"b": 2}}},
                {"id": "c3", "function": {"name": "h"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": null},
        ]));
        assert_eq!(out[0]["content"], "");
        assert_eq!(out[0]["reasoning_content"], "hm");
        let arguments = |index: usize| &out[0]["tool_calls"][index]["function"]["arguments"];
        assert_eq!(*arguments(0), "{\"a\":  1}");
        assert_eq!(*arguments(1), "{\"b\":2}");
        assert_eq!(*arguments(2), "{}");
        assert_eq!(
            out[1],
            json!({"role": "tool", "content": "", "tool_call_id": "c1"})
        );
    }

    #[test]
    fn empty_messages_are_rejected() {
        assert_eq!(rejected(json!([])).0, "messages");
    }

    #[test]
    fn invalid_fields_are_named_in_param() {
        let rows = [
            (json!(["x"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": 3, "content": "x"}]), "messages[0].role"),
            (
                json!([{"role": "robot", "content": "x"}]),
                "messages[0].role",
            ),
            (
                json!([{"role": "function", "content": "x"}]),
                "messages[0].role",
            ),
            (json!([{"role": "user"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": null}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": 3}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": ["x"]}]),
                "messages[0].content[0]",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content[0].text",
            ),
            (
                json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]),
                "messages[1].tool_call_id",
            ),
            (
                json!([{"role": "assistant", "tool_calls": {}}]),
                "messages[0].tool_calls",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{}]}]),
                "messages[0].tool_calls[0].function",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                json!([{"role": "assistant", "function_call": {"name": "f"}}]),
                "messages[0].function_call",
            ),
            (
                json!([{"role": "user", "content": "x", "name": 3}]),
                "messages[0].name",
            ),
        ];
        for (messages, param) in rows {
            assert_eq!(rejected(messages.clone()).0, param, "{messages}");
        }
    }

    #[test]
    fn image_parts_are_rejected_as_unsupported() {
        let (param, message) = rejected(json!([
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
        ]));
        assert_eq!(param, "messages[0].content[1].type");
        assert!(message.contains("text only"), "{message}");
    }
}
