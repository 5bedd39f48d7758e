//! How a request was matched to its conversation: the decision of the `sessions` crate with its evidence.
//!
//! Stored as one JSON object per turn. The journal adds forks; it does not interpret the rest.

use std::fmt;

use clawhost_chat::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{SessionId, TurnId};
use crate::string_enum::string_enum;

string_enum! {
    /// What a request is to its conversation.
    MatchDecision {
        /// It continues a reply of ours.
        Continue = "continue",
        /// It continues a reply that already has another continuation.
        Fork = "fork",
        /// It repeats a request.
        Retry = "retry",
        /// It begins a conversation.
        New = "new",
    }
}

/// How the session and the parent of a turn were matched. Every field has a default, because earlier versions recorded
/// fewer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MatchRecord {
    /// The decision; `None` if the request was not matched by content.
    pub decision: Option<MatchDecision>,
    /// Why, in text.
    pub reason: String,
    /// Share of the request's history that agrees with that of the matched turn, 0 to 1, in hundredths.
    pub agreed: Option<f64>,
    /// Number of summaries that an index returned.
    pub considered: usize,
    /// Number of turns that were read with their messages.
    pub compared: usize,
    /// The first candidates, best first.
    pub candidates: Vec<MatchCandidate>,
    /// The turn that the request continues.
    pub parent: Option<TurnId>,
    /// Position in the request of the reply that it continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
    /// The turn whose request is repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<TurnId>,
    /// What the request's new messages are to the turn that it continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_state: Option<NextStateReport>,
    /// Kinds of ambiguity that the conversation is known to vary in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub varies: Vec<String>,
    /// A message of the request that its client replaces in each request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralNote>,
    /// Why no conversation was chosen although several agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// The turn type that the client declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_type: Option<String>,
    /// Whether the client declared the session done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub session_done: bool,
    /// How the session was determined: `header`, `body`, `content` or `new`.
    pub by: String,
    /// By what a later request is recognized.
    pub mark: MatchMark,
    /// The turns that already had another next state than the one in this request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fork_of: Vec<TurnId>,
    /// Further continuations of this turn's reply by requests without turns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<Fork>,
    /// Fields of other versions, kept because a fork rewrites the record.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A turn that was compared with a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatchCandidate {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Why it cannot be the one; then it was not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// How well it agrees.
    #[serde(flatten)]
    pub agreement: Option<CandidateAgreement>,
}

/// Agreement of a candidate with a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CandidateAgreement {
    /// Share of the request's history that the turn has, 0 to 1.
    pub agreed: f64,
    /// Share of the turn's history that the request has, 0 to 1.
    pub of_turn: f64,
    /// Whether the turn has no continuation yet.
    pub open: bool,
}

/// What became of the new messages of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NextStateReport {
    /// The turn whose next state they may be.
    pub turn: TurnId,
    /// Whether they were recorded as its next state at once.
    pub handed: bool,
    /// Number of messages, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<usize>,
    /// Why not, otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The kind of ambiguity for which they were held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// The messages, if they were held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_back: Option<Vec<Message>>,
}

/// A message that is not in the next request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralNote {
    /// Its first characters.
    pub begins: String,
    /// How it was recognized.
    pub why: String,
}

/// What identifies the caller and the request besides its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MatchMark {
    /// The client's `user` field.
    pub user: Option<String>,
    /// Trace id.
    pub trace: Option<String>,
    /// The client's request id.
    pub request: Option<String>,
    /// Short digests of the request's messages.
    pub trail: Vec<String>,
}

/// A continuation of a reply that already has a next state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fork {
    /// Unix milliseconds.
    pub ms: i64,
    /// All messages after the reply.
    pub messages: Vec<Message>,
}

impl MatchRecord {
    /// The messages that were held back, if any.
    pub fn held_messages(&self) -> Option<&[Message]> {
        self.next_state.as_ref()?.kept_back.as_deref()
    }

    /// The kind of ambiguity for which the new messages were held back.
    pub fn ambiguity(&self) -> Option<&str> {
        self.next_state.as_ref()?.doubt.as_deref()
    }
}

/// As JSON, for messages.
impl fmt::Display for MatchRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_of_any_version_reads_and_keeps_what_it_does_not_know() {
        let old = json!({
            "decision": "continue", "reason": "r", "agreed": null, "considered": 1, "compared": 1,
            "candidates": [
                {"turn": 1, "session": "s", "agreed": 0.5, "of_turn": 1.0, "open": true},
                {"turn": 2, "session": "t", "why_not": "another key"},
            ],
            "parent": 1, "place": 2, "by": "content",
            "mark": {"user": null, "trace": "t", "trail": ["40c12fc8ce57"]},
            "next_state": {"turn": 1, "handed": false, "why": "held back", "doubt": "beside",
                "kept_back": [{"role": "user", "content": "no"}]},
            "of_the_future": {"a": [1]},
        });
        let record: MatchRecord = serde_json::from_value(old.clone()).unwrap();
        assert_eq!(record.decision, Some(MatchDecision::Continue));
        assert_eq!(record.candidates[0].agreement.unwrap().of_turn, 1.0);
        assert_eq!(record.candidates[1].agreement, None);
        assert_eq!(record.held_messages(), Some(&[Message::user("no")][..]));
        assert_eq!(record.ambiguity(), Some("beside"));
        let mut written = serde_json::to_value(&record).unwrap();
        assert_eq!(written["mark"]["request"], Value::Null);
        written["mark"] = old["mark"].clone();
        assert_eq!(written, old);
        assert_eq!(record.to_string().parse::<Value>().unwrap()["place"], 2);
        let empty: MatchRecord = serde_json::from_str("{}").unwrap();
        assert_eq!(empty, MatchRecord::default());
    }
}
