//! Normalization of messages.
//!
//! Clients send the same message as a string or as content parts, with other line ends, other tool-call ids, arguments
//! serialized again, with or without the reasoning. Normalized messages ignore these differences. Wording is not
//! interpreted: messages with different text are different.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::rendering::alphanumeric_text;

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `system` and `developer`.
    System,
    /// `user`.
    User,
    /// `assistant`.
    Assistant,
    /// `tool` and the older `function`.
    Tool,
    /// Any other role.
    Other,
}

impl Role {
    fn of(message: &Value) -> Self {
        match message.get("role").and_then(Value::as_str) {
            Some("system" | "developer") => Self::System,
            Some("user") => Self::User,
            Some("assistant") => Self::Assistant,
            Some("tool" | "function") => Self::Tool,
            _ => Self::Other,
        }
    }
}

/// First half of a SHA-256.
pub(crate) type MessageDigest = [u8; 16];

/// A message without formatting differences.
#[derive(Clone, Debug)]
pub(crate) struct NormalizedMessage {
    /// Role of the author.
    pub(crate) role: Role,
    /// Visible text, each run of white space as one space.
    pub(crate) text: String,
    /// Tool calls: name and canonical arguments.
    pub(crate) calls: Vec<(String, String)>,
    /// Digest of role, text without white space, calls and attachments.
    pub(crate) digest: MessageDigest,
    /// The same of what the text is in any rendering, see [`crate::rendering`].
    pub(crate) loose_digest: MessageDigest,
}

impl NormalizedMessage {
    /// Normalizes one message in OpenAI format. Malformed parts are ignored.
    pub(crate) fn of(message: &Value) -> Self {
        let role = Role::of(message);
        let mut read = Read::default();
        read.content(message.get("content"));
        if let Some(Value::String(refusal)) = message.get("refusal") {
            read.text.push_str(refusal);
        }
        if let Some(Value::Array(calls)) = message.get("tool_calls") {
            calls
                .iter()
                .for_each(|call| read.call(call.get("function").unwrap_or(call)));
        }
        if let Some(call @ Value::Object(_)) = message.get("function_call") {
            read.call(call);
        }
        let visible = match role {
            Role::Assistant => without_reasoning(&read.text),
            _ => &read.text,
        };
        let text = collapsed(visible);
        let digest = message_digest(role, &text, &read.calls, &read.attached);
        let rendered = match role {
            Role::System => String::new(),
            _ => alphanumeric_text(&text),
        };
        let loose_digest = match rendered.as_str() {
            "" => digest,
            rendered => message_digest(role, rendered, &read.calls, &read.attached),
        };
        Self {
            role,
            text,
            calls: read.calls,
            digest,
            loose_digest,
        }
    }

    /// Whether there is neither text nor a tool call.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty()
    }
}

/// Normalizes a list of messages.
pub(crate) fn normalize_all(messages: &[Value]) -> Vec<NormalizedMessage> {
    messages.iter().map(NormalizedMessage::of).collect()
}

/// Messages of a stored turn; anything but an array counts as empty.
pub(crate) fn list(messages: &Value) -> &[Value] {
    messages.as_array().map_or(&[], Vec::as_slice)
}

#[derive(Default)]
struct Read {
    text: String,
    calls: Vec<(String, String)>,
    attached: Vec<String>,
}

impl Read {
    fn content(&mut self, content: Option<&Value>) {
        match content {
            Some(Value::String(text)) => self.text.push_str(text),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.part(part)),
            Some(part @ Value::Object(_)) => self.part(part),
            _ => {}
        }
    }

    fn part(&mut self, part: &Value) {
        if let Value::String(text) = part {
            self.text.push_str(text);
            return;
        }
        match part.get("type").and_then(Value::as_str) {
            Some("thinking" | "redacted_thinking" | "reasoning") => {}
            Some("refusal") => self.text.push_str(
                part.get("refusal")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            ),
            Some("tool_use") => self.call(part),
            Some("tool_result") => self.content(part.get("content")),
            _ => match part.get("text") {
                Some(Value::String(text)) => self.text.push_str(text),
                _ => self.attached.push(canonical(part)),
            },
        }
    }

    fn call(&mut self, call: &Value) {
        let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
        let arguments = call.get("arguments").or_else(|| call.get("input"));
        self.calls
            .push((name.to_owned(), canonical_arguments(arguments)));
    }
}

/// Strips reasoning in `think` tags at the start of a reply, which some clients send back.
fn without_reasoning(text: &str) -> &str {
    text.trim_start()
        .strip_prefix("<think>")
        .and_then(|rest| rest.split_once("</think>"))
        .map_or(text, |(_, visible)| visible)
}

fn collapsed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

fn canonical_arguments(arguments: Option<&Value>) -> String {
    match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(parsed) => canonical(&parsed),
            Err(_) => collapsed(text),
        },
        Some(parsed) => canonical(parsed),
    }
}

/// JSON with sorted keys and no white space; integers have one form (`1`, `1.0`).
pub(crate) fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (position, (name, field)) in sorted.into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write_canonical(field, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Number(number) => {
            match number.as_f64().filter(|_| number.is_f64()).and_then(whole) {
                Some(whole) => out.push_str(&whole.to_string()),
                None => out.push_str(&number.to_string()),
            }
        }
        other => out.push_str(&other.to_string()),
    }
}

fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: beyond it a float no longer names one whole number
    // The cast is exact: the value is whole and within 2^53.
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

fn message_digest(
    role: Role,
    text: &str,
    calls: &[(String, String)],
    attached: &[String],
) -> MessageDigest {
    let mut hash = Sha256::new();
    hash.update([role as u8]);
    // Spaces are ignored, since they change where a client splits or joins text parts.
    for word in text.split(' ') {
        hash.update(word.as_bytes());
    }
    for (name, arguments) in calls {
        hash.update([0, b'c']);
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update(arguments.as_bytes());
    }
    for part in attached {
        hash.update([0, b'a']);
        hash.update(part.as_bytes());
    }
    let full = hash.finalize();
    let mut digest = [0; 16];
    digest
        .iter_mut()
        .zip(full.iter())
        .for_each(|(to, from)| *to = *from);
    digest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn digest(message: Value) -> MessageDigest {
        NormalizedMessage::of(&message).digest
    }

    #[test]
    fn formatting_does_not_change_the_digest() {
        let same = [
            json!({"role": "assistant", "content": "Two  apples\r\nand a pear."}),
            json!({"role": "assistant", "content": [{"type": "text", "text": "Two apples\nand a pear."}]}),
            json!({"role": "assistant", "content": [{"type": "output_text", "text": "Two apples "}, {"type": "text", "text": "and a pear."}]}),
            json!({"role": "assistant", "content": ["Two apples", "and a pear."], "reasoning_content": "fruit"}),
            json!({"role": "assistant", "content": "<think>fruit</think>\nTwo apples and a pear.", "tool_calls": []}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "Two apples and a pear."}], "refusal": null}),
        ];
        for message in &same {
            assert_eq!(
                digest(message.clone()),
                digest(same[0].clone()),
                "{message}"
            );
        }
    }

    #[test]
    fn tool_calls_are_identified_by_name_and_arguments() {
        let call = |id: &str, name: &str, arguments: Value| json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]});
        let first = digest(call(
            "call_1",
            "read",
            json!("{\"path\": \"a.md\", \"lines\": 3}"),
        ));
        assert_eq!(
            first,
            digest(call(
                "call1",
                "read",
                json!("{\"lines\":3.0,\"path\":\"a.md\"}")
            ))
        );
        assert_eq!(
            first,
            digest(call("", "read", json!({"lines": 3, "path": "a.md"})))
        );
        assert_ne!(
            first,
            digest(call(
                "call_1",
                "read",
                json!("{\"path\": \"b.md\", \"lines\": 3}")
            ))
        );
        assert_ne!(
            first,
            digest(call(
                "call_1",
                "write",
                json!("{\"path\": \"a.md\", \"lines\": 3}")
            ))
        );
        assert_eq!(
            digest(call("1", "now", json!(""))),
            digest(call("2", "now", json!("{}")))
        );
    }

    #[test]
    fn role_text_and_attachments_change_the_digest() {
        let say = |role: &str, text: &str| digest(json!({"role": role, "content": text}));
        assert_ne!(say("user", "yes"), say("assistant", "yes"));
        assert_ne!(say("user", "yes"), say("user", "no"));
        assert_eq!(say("developer", "be kind"), say("system", "be kind"));
        let picture = |url: &str| {
            digest(
                json!({"role": "user", "content": [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]}),
            )
        };
        assert_ne!(picture("data:1"), picture("data:2"));
    }

    #[test]
    fn malformed_messages_are_normalized_without_panic() {
        for message in [
            json!(null),
            json!({}),
            json!({"role": 3, "content": {"type": 1}}),
            json!({"role": "assistant", "tool_calls": [null, 7]}),
        ] {
            NormalizedMessage::of(&message);
        }
        let unparsed = NormalizedMessage::of(
            &json!({"role": "assistant", "tool_calls": [{"function": {"name": "run", "arguments": "{\"a\": "}}]}),
        );
        assert_eq!(unparsed.calls, [("run".to_owned(), "{\"a\":".to_owned())]);
    }

    fn arguments() -> impl Strategy<Value = serde_json::Map<String, Value>> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from)
        ];
        proptest::collection::btree_map("[a-z]{1,6}", leaf, 0..5)
            .prop_map(|fields| fields.into_iter().collect())
    }

    proptest! {
        #[test]
        fn ids_format_and_key_order_do_not_change_the_digest(
            words in proptest::collection::vec("[^\\s<]{1,8}", 1..20),
            gaps in proptest::collection::vec("[ \\t\\n]{1,3}", 20),
            cut in 0usize..20,
            ids in ("[a-z0-9_]{0,9}", "[a-z0-9_]{0,9}"),
            fields in arguments(),
        ) {
            let loose: String = words.iter().zip(&gaps).flat_map(|(word, gap)| [gap.as_str(), word.as_str()]).collect();
            let at = words.len().min(cut);
            let parts = json!([{"type": "text", "text": words[..at].join(" ")}, {"type": "text", "text": words[at..].join("\n")}]);
            let reversed: serde_json::Map<String, Value> = fields.clone().into_iter().rev().collect();
            let with = |id: &str, content: Value, arguments: Value| json!({"role": "assistant", "content": content, "tool_calls": [{"id": id, "function": {"name": "f", "arguments": arguments}}]});
            let one = digest(with(&ids.0, json!(words.join(" ")), json!(Value::Object(fields.clone()).to_string())));
            prop_assert_eq!(one, digest(with(&ids.1, json!(loose), Value::Object(reversed))));
            prop_assert_eq!(one, digest(with(&ids.1, parts, json!(serde_json::to_string_pretty(&fields).unwrap()))));
        }
    }
}
