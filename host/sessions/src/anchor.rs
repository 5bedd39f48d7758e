//! Digests by which the journal's indexes find things again: of a reply, of a request, and a short trail of a history.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::normalise::{Mark, Plain, Role, canonical};

/// Messages at the end of a request whose marks are kept with the turn.
const TRAIL: usize = 8;

/// Digest of an assistant reply, insensitive to everything that clients rewrite: tool-call ids, string or parts, white
/// space, reasoning. `None` for a reply that says nothing, because nothing could be anchored on it.
pub fn reply_anchor(message: &Value) -> Option<String> {
    let mut reply = Plain::of(message);
    if reply.role != Role::Assistant {
        // A reply is ours whatever role a client library left out.
        let mut owned = message.clone();
        owned
            .as_object_mut()?
            .insert("role".to_owned(), Value::from("assistant"));
        reply = Plain::of(&owned);
    }
    anchor(&reply)
}

/// The same for a message that was already reduced.
pub(crate) fn anchor(reply: &Plain) -> Option<String> {
    (!reply.is_empty()).then(|| hex(&reply.mark))
}

/// Digest of a request: what is asked, of whom, with which tools. Ids and formatting do not count, so a retry that a
/// client library serialised anew is still the same request.
pub(crate) fn request_digest<'a>(
    messages: impl Iterator<Item = &'a Plain>,
    tools: &[Value],
) -> String {
    let mut hash = Sha256::new();
    for message in messages {
        hash.update(message.mark);
    }
    for tool in tools {
        hash.update([0]);
        hash.update(canonical(tool).as_bytes());
    }
    hex(&hash.finalize())
}

/// Marks of the last messages of a request, oldest first: a cheap first look at whether two histories agree.
pub(crate) fn trail(messages: &[Plain]) -> Vec<String> {
    let spoken: Vec<&Plain> = messages
        .iter()
        .filter(|message| message.role != Role::System)
        .collect();
    spoken
        .iter()
        .skip(spoken.len().saturating_sub(TRAIL))
        .map(|message| short(&message.mark))
        .collect()
}

/// Short form of a mark, as kept in a trail.
pub(crate) fn short(mark: &Mark) -> String {
    hex(mark.get(..6).unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::normalise::plain_all;

    #[test]
    fn an_anchor_is_of_a_reply_that_says_something() {
        assert_eq!(
            reply_anchor(&json!({"role": "assistant", "content": null})),
            None
        );
        assert_eq!(
            reply_anchor(
                &json!({"role": "assistant", "content": " \n", "reasoning_content": "hm"})
            ),
            None
        );
        assert_eq!(reply_anchor(&json!("text")), None);
        let anchor = reply_anchor(&json!({"role": "assistant", "content": "42"})).unwrap();
        assert_eq!(reply_anchor(&json!({"content": "42"})), Some(anchor));
    }

    #[test]
    fn a_request_is_known_by_messages_and_tools() {
        let ask = |text: &str, tools: Value| {
            request_digest(
                plain_all(&[json!({"role": "user", "content": text})]).iter(),
                tools.as_array().unwrap(),
            )
        };
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        assert_eq!(ask("hi", json!([])), ask(" hi ", json!([])));
        assert_ne!(ask("hi", json!([])), ask("ho", json!([])));
        assert_ne!(ask("hi", json!([])), ask("hi", tool.clone()));
        assert_eq!(
            ask("hi", tool),
            ask(
                "hi",
                json!([{"function": {"name": "f"}, "type": "function"}])
            )
        );
    }
}
