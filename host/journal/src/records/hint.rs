//! Hints: advice derived from what followed a reply, used to build the teacher's prompt for distillation.

use serde::{Deserialize, Serialize};

use super::PluginMetrics;
use crate::ids::TurnId;
use crate::string_enum::string_enum;

string_enum! {
    /// Position of a hint in the teacher's prompt.
    HintPlacement {
        /// Appended to the last user message.
        LastUser = "last-user",
        /// A separate system message before the conversation.
        System = "system",
    }
}

/// Result of a hint extractor: a hint, or a reason for no hint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HintOutcome {
    /// A hint.
    Hint {
        /// Text of the hint; not empty.
        text: String,
        /// Position in the prompt.
        placement: HintPlacement,
        /// The extractor's confidence, 0 to 1.
        confidence: f32,
    },
    /// No hint.
    None {
        /// The reason: `nothing to advise`, or the short name of a plugin fault.
        reason: String,
    },
}

/// A hint extractor result to insert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewHint {
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the extractor component, in hex.
    pub digest: String,
    /// The hint, or the reason for no hint.
    pub outcome: HintOutcome,
    /// Message of a plugin fault; empty without one.
    pub said: String,
    /// Further metrics of the extractor.
    pub metrics: PluginMetrics,
    /// Unix milliseconds.
    pub ms: i64,
}

/// A hint that is loaded with a sample for training. Never a reason for no hint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleHint {
    /// Id of the hint, from 1; see [`HintRecord`].
    pub id: i64,
    /// Text of the hint; not empty.
    pub text: String,
    /// Position in the prompt.
    pub placement: HintPlacement,
    /// The extractor's confidence, 0 to 1.
    pub confidence: f32,
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the extractor component, in hex.
    pub digest: String,
}

/// A recorded hint extractor result. All hints of a turn are candidates for distillation; the trainer selects one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HintRecord {
    /// Id of the hint, from 1.
    pub id: i64,
    /// The turn.
    pub turn: TurnId,
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the extractor component, in hex.
    pub digest: String,
    /// The hint, or the reason for no hint.
    pub outcome: HintOutcome,
    /// Message of a plugin fault; empty without one.
    pub said: String,
    /// Further metrics of the extractor.
    pub metrics: PluginMetrics,
    /// Unix milliseconds.
    pub ms: i64,
}
