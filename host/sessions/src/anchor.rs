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

/// Digests of a history that show which turns were asked exactly it, without reading them.
///
/// A turn keeps all of them of its request, a later request looks its own up. System messages count only together with
/// the user, to tell equal conversations of different people apart.
pub(crate) struct Histories {
    /// All messages, the user and the system messages.
    pub(crate) whose: String,
    /// All messages.
    pub(crate) whole: String,
    /// Our replies alone: clients decorate and edit everything else. None where there is none.
    pub(crate) ours: Option<String>,
}

impl Histories {
    /// Of the messages in front of a reply; none when nothing but system messages is there.
    pub(crate) fn of(messages: &[Plain], user: Option<&str>) -> Option<Self> {
        let is_system = |message: &&Plain| message.role == Role::System;
        let spoken: Vec<&Mark> = messages
            .iter()
            .filter(|message| !is_system(message))
            .map(|message| &message.mark)
            .collect();
        let ours: Vec<&Mark> = messages
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .map(|message| &message.mark)
            .collect();
        let digest = |kind: u8, marks: &[&Mark]| {
            let mut hash = Sha256::new();
            hash.update([kind]);
            marks.iter().for_each(|mark| hash.update(mark));
            hash
        };
        let mut whose = digest(b'p', &spoken);
        messages
            .iter()
            .filter(is_system)
            .for_each(|message| whose.update(message.mark));
        whose.update([u8::from(user.is_some())]);
        whose.update(user.unwrap_or_default());
        let first_half = |hash: Sha256| hex(hash.finalize().get(..16).unwrap_or_default());
        (!spoken.is_empty()).then(|| Self {
            whose: first_half(whose),
            whole: first_half(digest(b'w', &spoken)),
            ours: (!ours.is_empty()).then(|| first_half(digest(b'o', &ours))),
        })
    }

    /// What a turn keeps: the digests of its request, and of its request less the last message, which some clients
    /// replace each time.
    pub(crate) fn to_keep(messages: &[Plain], user: Option<&str>) -> Vec<String> {
        let mut kept = Vec::new();
        if let Some(all) = Self::of(messages, user) {
            kept.extend([all.whose, all.whole]);
            kept.extend(all.ours);
        }
        let shorter = match messages.split_last() {
            Some((last, rest)) if last.role != Role::Assistant => Self::of(rest, user),
            _ => None,
        };
        if let Some(shorter) = shorter {
            kept.extend([shorter.whose, shorter.whole].map(but_last));
        }
        kept.extend(UserSide::to_keep(messages));
        kept
    }
}

/// Digests of what the user said in a request, in any rendering: a client may leave our replies out, or show them
/// otherwise than they were given.
pub(crate) struct UserSide {
    /// All messages of the user.
    pub(crate) all: String,
    /// The last one.
    pub(crate) last: String,
}

impl UserSide {
    /// Of messages of the user; none where nobody said anything.
    pub(crate) fn of<'a>(said: impl IntoIterator<Item = &'a Plain>) -> Option<Self> {
        let mut hash = Sha256::new();
        hash.update([b'u']);
        let mut last = None;
        for message in said {
            hash.update(message.loose);
            last = Some(message.loose);
        }
        let last = Sha256::new().chain_update([b'l']).chain_update(last?);
        let first_half = |hash: Sha256| hex(hash.finalize().get(..16).unwrap_or_default());
        Some(Self {
            all: first_half(hash),
            last: first_half(last),
        })
    }

    /// What a turn keeps: the digests of its request, and of its request less a last message that may be replaced.
    fn to_keep(messages: &[Plain]) -> Vec<String> {
        let said: Vec<&Plain> = said_by_user(messages).map(|(_, message)| message).collect();
        let Some(side) = Self::of(said.iter().copied()) else {
            return Vec::new();
        };
        let mut kept = vec![side.all, side.last];
        let ends_with_user = messages.last().is_some_and(|last| last.role == Role::User);
        if ends_with_user && let Some((_, rest)) = said.split_last() {
            kept.extend(Self::of(rest.iter().copied()).map(|rest| but_last(rest.all)));
        }
        kept
    }
}

/// The messages in which the user says something, with their places.
pub(crate) fn said_by_user(messages: &[Plain]) -> impl Iterator<Item = (usize, &Plain)> {
    let said = |(_, message): &(usize, &Plain)| message.role == Role::User && !message.is_empty();
    messages.iter().enumerate().filter(said)
}

/// The digest under which a turn is kept whose request had one message more.
pub(crate) fn but_last(digest: String) -> String {
    digest + "-1"
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
