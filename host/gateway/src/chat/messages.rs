//! Validates and normalizes the messages of a chat request.
//!
//! OpenAI allows several representations of the same conversation. Templates, sessions and judges get one: roles system,
//! user, assistant and tool; content as one string; tool call arguments as JSON text. Unsupported content (images, audio,
//! files, obsolete roles) is rejected, never dropped.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Validates the messages of a request and returns them in the normalized format.
pub(crate) fn normalize(messages: &[Value]) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` is empty; send at least one message",
        ));
    }
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| normalize_message(message, &format!("messages[{index}]")))
        .collect()
}

fn normalize_message(message: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::new(message, path)?;
    let role = fields.required_text("role")?;
    let mut out = Map::new();
    match role {
        "system" | "developer" => {
            out.insert("role".into(), "system".into());
            out.insert("content".into(), required_content(fields)?);
        }
        "user" => {
            out.insert("role".into(), role.into());
            out.insert("content".into(), required_content(fields)?);
        }
        "assistant" => normalize_assistant(fields, &mut out)?,
        "tool" => {
            out.insert("role".into(), role.into());
            let text = content(fields)?.unwrap_or_default();
            out.insert("content".into(), text.into());
            let id = fields.required_text("tool_call_id")?;
            out.insert("tool_call_id".into(), id.into());
        }
        "function" => {
            return Err(ApiError::unsupported(
                fields.path_of("role"),
                "the role `function` is obsolete; send the result with the role `tool` and its `tool_call_id`",
            ));
        }
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(ApiError::invalid(
                fields.path_of("role"),
                format!(
                    "the role `{shown}` is unknown; the roles are system, developer, user, assistant and tool"
                ),
            ));
        }
    }
    if let Some(name) = fields.text("name")? {
        out.insert("name".into(), name.into());
    }
    Ok(Value::Object(out))
}

fn normalize_assistant(
    fields: Fields<'_, '_>,
    out: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    out.insert("role".into(), "assistant".into());
    if fields.value("function_call").is_some() {
        return Err(ApiError::unsupported(
            fields.path_of("function_call"),
            "`function_call` is obsolete; send `tool_calls`",
        ));
    }
    let text = match content(fields)? {
        Some(text) => text,
        // A refusal replaces the content.
        None => fields.text("refusal")?.unwrap_or("").to_owned(),
    };
    out.insert("content".into(), text.into());
    let reasoning = match fields.text("reasoning_content")? {
        Some(reasoning) => Some(reasoning),
        None => match fields.value("reasoning") {
            // Some clients send an object with settings here; only a string is reasoning text.
            Some(Value::String(reasoning)) => Some(reasoning.as_str()),
            _ => None,
        },
    };
    if let Some(reasoning) = reasoning {
        out.insert("reasoning_content".into(), reasoning.into());
    }
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    if !calls.is_empty() {
        let calls = calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                tool_call(call, &format!("{}[{index}]", fields.path_of("tool_calls")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    Ok(())
}

fn tool_call(call: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::new(call, path)?;
    let kind = fields.text("type")?.unwrap_or("function");
    if kind != "function" {
        return Err(ApiError::unsupported(
            fields.path_of("type"),
            "only tool calls of the type `function` are supported",
        ));
    }
    let path_of_function = fields.path_of("function");
    let function = fields
        .value("function")
        .ok_or_else(|| fields.missing("function"))?;
    let function = Fields::new(function, &path_of_function)?;
    let name = function.required_text("name")?;
    // The arguments are kept verbatim, because the model generated them, valid JSON or not.
    let arguments = match function.value("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(other) => {
            return Err(wrong_type(
                &function.path_of("arguments"),
                "a string with JSON",
                other,
            ));
        }
    };
    Ok(json!({
        "id": fields.text("id")?.unwrap_or(""),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }))
}

fn required_content(fields: Fields<'_, '_>) -> Result<Value, ApiError> {
    content(fields)?
        .map(Value::String)
        .ok_or_else(|| fields.missing("content"))
}

/// The content as one string; text parts are joined by line breaks.
pub(crate) fn content(fields: Fields<'_, '_>) -> Result<Option<String>, ApiError> {
    let parts = match fields.value("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone())),
        Some(Value::Array(parts)) => parts,
        Some(other) => {
            return Err(wrong_type(
                &fields.path_of("content"),
                "a string or an array of text parts",
                other,
            ));
        }
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{}[{index}]", fields.path_of("content"));
        let part = Fields::new(part, &path)?;
        let piece = match part.required_text("type")? {
            "text" | "input_text" | "output_text" => part.required_text("text")?,
            "refusal" => part.required_text("refusal")?,
            kind @ ("image_url" | "input_image" | "image" | "input_audio" | "file"
            | "video_url") => {
                return Err(ApiError::unsupported(
                    part.path_of("type"),
                    format!("this model reads text only; `{kind}` parts are not supported"),
                ));
            }
            other => {
                let shown: String = other.chars().take(40).collect();
                return Err(ApiError::invalid(
                    part.path_of("type"),
                    format!("content parts of the type `{shown}` are unknown; send `text` parts"),
                ));
            }
        };
        if index > 0 {
            text.push('\n');
        }
        text.push_str(piece);
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(messages: Value) -> (String, String) {
        let error = normalize(messages.as_array().unwrap()).unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
        let param = error.to_json()["error"]["param"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        (param, error.to_string())
    }

    fn accepted(messages: Value) -> Vec<Value> {
        normalize(messages.as_array().unwrap()).unwrap()
    }

    #[test]
    fn normalized_messages_are_unchanged() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u", "name": "ann"},
            {"role": "assistant", "content": "a"},
        ]);
        assert_eq!(Value::Array(accepted(messages.clone())), messages);
    }

    #[test]
    fn developer_becomes_system_and_text_parts_are_joined() {
        let out = accepted(json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]));
        assert_eq!(out, [json!({"role": "system", "content": "a\nb"})]);
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
