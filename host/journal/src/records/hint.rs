//! Hints: what followed a reply, as advice that was not there when it was made.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::TurnId;
use crate::words::words;

words! {
    /// Where a hint goes in the prompt of whoever is to answer with it.
    HintPlacement {
        /// Appended to the last user message.
        LastUser = "last-user",
        /// A system message of its own before the conversation.
        System = "system",
    }
}

/// What an extractor gave: a hint, or none with a reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HintOutcome {
    /// A hint.
    Hint {
        /// The advice; not empty.
        text: String,
        /// Where it goes.
        placement: HintPlacement,
        /// From 0 to 1, as the extractor sees it.
        confidence: f32,
    },
    /// No hint.
    None {
        /// Why not: `nothing to advise`, or the short name of a fault.
        reason: String,
    },
}

/// A hint to be recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewHint {
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the component that was asked, in hex.
    pub digest: String,
    /// The hint, or why there is none.
    pub outcome: HintOutcome,
    /// What a fault said; empty where there was none.
    pub said: String,
    /// Further numbers of the extractor.
    pub metrics: Value,
    /// When, unix milliseconds.
    pub ms: i64,
}

/// A hint that whoever trains on a sample may use: one that there is, never a reason for none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleHint {
    /// Number of the hint, from 1 up; see [`HintRecord`].
    pub id: i64,
    /// The advice; not empty.
    pub text: String,
    /// Where it goes.
    pub placement: HintPlacement,
    /// From 0 to 1, as the extractor sees it.
    pub confidence: f32,
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the component that gave it, in hex.
    pub digest: String,
}

/// A hint as recorded. All hints of a turn are candidates for whoever distils from them; which one is taken is not
/// decided here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HintRecord {
    /// Number of the hint, from 1 up.
    pub id: i64,
    /// Which turn.
    pub turn: TurnId,
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the component that was asked, in hex.
    pub digest: String,
    /// The hint, or why there is none.
    pub outcome: HintOutcome,
    /// What a fault said; empty where there was none.
    pub said: String,
    /// Further numbers of the extractor.
    pub metrics: Value,
    /// When, unix milliseconds.
    pub ms: i64,
}
