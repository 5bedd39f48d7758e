//! Digests that the journal indexes: of replies, requests and message histories.

use clawhost_chat::{AssistantMessage, Role, Tool};
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::normalize::{MessageDigest, NormalizedMessage, canonical};

/// Messages at the end of a request whose short digests are stored with the turn.
const TRAIL_LENGTH: usize = 8;

/// Digest of an assistant reply. It ignores everything that clients rewrite: tool-call ids, string or content parts,
/// white space, reasoning. `None` for an empty reply, which identifies nothing.
pub fn reply_digest(reply: &AssistantMessage) -> Option<String> {
    digest_of_reply(&NormalizedMessage::of_reply(reply))
}

/// As [`reply_digest`], for a normalized message.
pub(crate) fn digest_of_reply(reply: &NormalizedMessage) -> Option<String> {
    (!reply.is_empty()).then(|| hex(&reply.digest))
}

/// Digest of a request: its messages and tools. Ids and formatting are ignored, so a retry that the client library
/// serialized again has the same digest.
pub(crate) fn request_digest<'a>(
    messages: impl Iterator<Item = &'a NormalizedMessage>,
    tools: &[Tool],
) -> String {
    let mut hash = Sha256::new();
    for message in messages {
        hash.update(message.digest);
    }
    for tool in tools {
        hash.update([0]);
        let tool = serde_json::to_value(tool).expect("tools are plain JSON");
        hash.update(canonical(&tool).as_bytes());
    }
    hex(&hash.finalize())
}

/// Short digests of the last messages of a request, oldest first, for a cheap comparison of two histories.
pub(crate) fn trail(messages: &[NormalizedMessage]) -> Vec<String> {
    let spoken: Vec<&NormalizedMessage> = messages
        .iter()
        .filter(|message| message.role != Role::System)
        .collect();
    spoken
        .iter()
        .skip(spoken.len().saturating_sub(TRAIL_LENGTH))
        .map(|message| short_digest(&message.digest))
        .collect()
}

/// Digests of a message history, used to find turns with exactly this history without reading them.
///
/// A turn stores all of them for its request; a later request looks up its own. System messages count only in
/// `with_identity`, which separates equal conversations of different users.
pub(crate) struct HistoryDigests {
    /// All messages, the user and the system messages.
    pub(crate) with_identity: String,
    /// All messages.
    pub(crate) all_messages: String,
    /// The assistant messages only, since clients decorate and edit everything else. `None` without any.
    pub(crate) our_replies: Option<String>,
}

impl HistoryDigests {
    /// Digests of the messages before a reply; `None` if there are only system messages.
    pub(crate) fn of(messages: &[NormalizedMessage], user: Option<&str>) -> Option<Self> {
        let is_system = |message: &&NormalizedMessage| message.role == Role::System;
        let spoken: Vec<&MessageDigest> = messages
            .iter()
            .filter(|message| !is_system(message))
            .map(|message| &message.digest)
            .collect();
        let ours: Vec<&MessageDigest> = messages
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .map(|message| &message.digest)
            .collect();
        let digest = |kind: u8, marks: &[&MessageDigest]| {
            let mut hash = Sha256::new();
            hash.update([kind]);
            marks.iter().for_each(|mark| hash.update(mark));
            hash
        };
        let mut whose = digest(b'p', &spoken);
        messages
            .iter()
            .filter(is_system)
            .for_each(|message| whose.update(message.digest));
        whose.update([u8::from(user.is_some())]);
        whose.update(user.unwrap_or_default());
        let first_half = |hash: Sha256| hex(&hash.finalize()[..16]);
        (!spoken.is_empty()).then(|| Self {
            with_identity: first_half(whose),
            all_messages: first_half(digest(b'w', &spoken)),
            our_replies: (!ours.is_empty()).then(|| first_half(digest(b'o', &ours))),
        })
    }

    /// The digests that a turn stores: of its request, and of its request without the last message, which some clients
    /// replace in each request.
    pub(crate) fn stored_digests(
        messages: &[NormalizedMessage],
        user: Option<&str>,
    ) -> Vec<String> {
        let mut stored = Vec::new();
        if let Some(all) = Self::of(messages, user) {
            stored.extend([all.with_identity, all.all_messages]);
            stored.extend(all.our_replies);
        }
        let shorter = match messages.split_last() {
            Some((last, rest)) if last.role != Role::Assistant => Self::of(rest, user),
            _ => None,
        };
        if let Some(shorter) = shorter {
            stored.extend([shorter.with_identity, shorter.all_messages].map(without_last));
        }
        stored.extend(UserDigests::stored_digests(messages));
        stored
    }
}

/// Digests of the user messages of a request, independent of rendering, for clients that leave our replies out or
/// change them.
pub(crate) struct UserDigests {
    /// All messages of the user.
    pub(crate) all: String,
    /// The last one.
    pub(crate) last: String,
}

impl UserDigests {
    /// Digests of user messages; `None` without any.
    pub(crate) fn of<'a>(said: impl IntoIterator<Item = &'a NormalizedMessage>) -> Option<Self> {
        let mut hash = Sha256::new();
        hash.update([b'u']);
        let mut last = None;
        for message in said {
            hash.update(message.loose_digest);
            last = Some(message.loose_digest);
        }
        let last = Sha256::new().chain_update([b'l']).chain_update(last?);
        let first_half = |hash: Sha256| hex(&hash.finalize()[..16]);
        Some(Self {
            all: first_half(hash),
            last: first_half(last),
        })
    }

    /// The digests that a turn stores: of its request, and of its request without a last user message that may be
    /// replaced.
    fn stored_digests(messages: &[NormalizedMessage]) -> Vec<String> {
        let said: Vec<&NormalizedMessage> = user_messages(messages)
            .map(|(_, message)| message)
            .collect();
        let Some(side) = Self::of(said.iter().copied()) else {
            return Vec::new();
        };
        let mut stored = vec![side.all, side.last];
        let ends_with_user = messages.last().is_some_and(|last| last.role == Role::User);
        if ends_with_user && let Some((_, rest)) = said.split_last() {
            stored.extend(Self::of(rest.iter().copied()).map(|rest| without_last(rest.all)));
        }
        stored
    }
}

/// The non-empty user messages with their positions.
pub(crate) fn user_messages(
    messages: &[NormalizedMessage],
) -> impl Iterator<Item = (usize, &NormalizedMessage)> {
    let said = |(_, message): &(usize, &NormalizedMessage)| {
        message.role == Role::User && !message.is_empty()
    };
    messages.iter().enumerate().filter(said)
}

/// The stored digest of a history without the last message of its request.
pub(crate) fn without_last(digest: String) -> String {
    digest + "-1"
}

/// Short form of a message digest, as stored in a trail.
pub(crate) fn short_digest(mark: &MessageDigest) -> String {
    hex(&mark[..6])
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
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
    use clawhost_chat::Message;
    use serde_json::{Value, json};

    use super::*;
    use crate::normalize::normalize_all;

    #[test]
    fn empty_replies_have_no_digest() {
        let digest = |reply| reply_digest(&serde_json::from_value(reply).unwrap());
        for reply in [
            json!({"role": "assistant", "content": null}),
            json!({"role": "assistant", "content": " \n", "reasoning_content": "hm"}),
        ] {
            assert_eq!(digest(reply.clone()), None, "{reply}");
        }
        let anchor = digest(json!({"role": "assistant", "content": "42"})).unwrap();
        assert_eq!(digest(json!({"content": "42"})), Some(anchor));
    }

    #[test]
    fn request_digests_cover_messages_and_tools() {
        let ask = |text: &str, tools: &[Value]| {
            let tools: Vec<Tool> = tools
                .iter()
                .map(|tool| serde_json::from_value(tool.clone()).unwrap())
                .collect();
            request_digest(normalize_all(&[Message::user(text)]).iter(), &tools)
        };
        let tool = [json!({"type": "function", "function": {"name": "f"}})];
        assert_eq!(ask("hi", &[]), ask(" hi ", &[]));
        assert_ne!(ask("hi", &[]), ask("ho", &[]));
        assert_ne!(ask("hi", &[]), ask("hi", &tool));
        assert_eq!(
            ask("hi", &tool),
            ask(
                "hi",
                &[json!({"function": {"name": "f"}, "type": "function"})]
            )
        );
    }
}
