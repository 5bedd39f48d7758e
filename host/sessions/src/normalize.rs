//! Normalization of messages.
//!
//! Clients send the same message as a string or as content parts, with other line ends, other tool-call ids, arguments
//! serialized again, with or without the reasoning. Normalized messages ignore these differences. Wording is not
//! interpreted: messages with different text are different.

use clawhost_chat::{AssistantMessage, Content, ContentPart, Message, Role, ToolCall};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::rendering::alphanumeric_text;

/// First half of a SHA-256.
pub(crate) type MessageDigest = [u8; 16];

/// A message without formatting differences.
#[derive(Clone, Debug)]
pub struct NormalizedMessage {
    /// Role of the author.
    pub role: Role,
    /// Visible text, each run of white space as one space.
    pub text: String,
    /// Tool calls: name and canonical arguments.
    pub calls: Vec<(String, String)>,
    /// Digest of role, text without white space, calls and attachments.
    pub(crate) digest: MessageDigest,
    /// The same of what the text is in any rendering, see [`crate::rendering`].
    pub(crate) loose_digest: MessageDigest,
}

impl NormalizedMessage {
    /// Normalizes one message.
    pub fn of(message: &Message) -> Self {
        Self::from_fields(message.role(), message.content(), message.tool_calls())
    }

    /// Normalizes a reply.
    pub fn of_reply(reply: &AssistantMessage) -> Self {
        Self::from_fields(Role::Assistant, reply.content.as_ref(), &reply.tool_calls)
    }

    fn from_fields(role: Role, content: Option<&Content>, calls: &[ToolCall]) -> Self {
        let mut read = Read::default();
        for part in content.map_or(&[][..], Content::parts) {
            match part {
                ContentPart::Text(text) => read.text.push_str(text),
                ContentPart::Other(part) => read.part(part),
            }
        }
        for call in calls {
            let arguments = canonical_arguments(&call.function.arguments);
            read.calls.push((call.function.name.clone(), arguments));
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
pub fn normalize_all(messages: &[Message]) -> Vec<NormalizedMessage> {
    messages.iter().map(NormalizedMessage::of).collect()
}

#[derive(Default)]
struct Read {
    text: String,
    calls: Vec<(String, String)>,
    attached: Vec<String>,
}

impl Read {
    /// Reads a part of a kind that is not text: reasoning is ignored, anything else counts as an attachment.
    fn part(&mut self, part: &Value) {
        match part.get("type").and_then(Value::as_str) {
            Some("thinking" | "redacted_thinking" | "reasoning") => {}
            _ => match part.get("text") {
                Some(Value::String(text)) => self.text.push_str(text),
                _ => self.attached.push(canonical(part)),
            },
        }
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

fn canonical_arguments(arguments: &str) -> String {
    if arguments.trim().is_empty() {
        return "{}".to_owned();
    }
    match serde_json::from_str::<Value>(arguments) {
        Ok(parsed) => canonical(&parsed),
        Err(_) => collapsed(arguments),
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

/// The role in a digest. Stored digests contain it: it never changes.
fn role_code(role: Role) -> u8 {
    match role {
        Role::System => 0,
        Role::User => 1,
        Role::Assistant => 2,
        Role::Tool => 3,
    }
}

fn message_digest(
    role: Role,
    text: &str,
    calls: &[(String, String)],
    attached: &[String],
) -> MessageDigest {
    let mut hash = Sha256::new();
    hash.update([role_code(role)]);
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
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::digests::hex;

    /// A message of a role with one text.
    pub(crate) fn message(role: &str, text: &str) -> Message {
        serde_json::from_value(json!({"role": role, "content": text})).unwrap()
    }

    fn normalized(message: Value) -> NormalizedMessage {
        NormalizedMessage::of(&serde_json::from_value(message).unwrap())
    }

    fn digest(message: Value) -> MessageDigest {
        normalized(message).digest
    }

    #[test]
    fn digests_are_those_of_stored_turns() {
        let call = json!({"id": "c", "type": "function",
            "function": {"name": "read", "arguments": "{\"path\": \"a.md\", \"lines\": 3.0}"}});
        let image = json!({"type": "image_url", "image_url": {"url": "data:1"}});
        let rows = [
            (
                json!({"role": "system", "content": "Be kind."}),
                "0a225e3fc75e7855e2d7355a9791b642",
            ),
            (
                json!({"role": "user", "content": "two  words\n"}),
                "d8abdbb0ca5da82cbcad088aa52c4bbe",
            ),
            (
                json!({"role": "assistant", "content": "<think>x</think> ok", "reasoning_content": "hm"}),
                "02948502c034e71e56e88a9b8161cd6a",
            ),
            (
                json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                "a9aed6d6437b408795a18b1f669415de",
            ),
            (
                json!({"role": "tool", "content": "3", "tool_call_id": "c"}),
                "e7ea994b0c5c1a72ce3228465599fb9f",
            ),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "see"}, image]}),
                "174125161456dc4997349a039031cc75",
            ),
        ];
        for (message, expected) in rows {
            assert_eq!(hex(&digest(message.clone())), expected, "{message}");
        }
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
    fn arguments_that_are_not_json_are_compared_as_text() {
        let unparsed = normalized(
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "run", "arguments": "{\"a\": "}}]}),
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
