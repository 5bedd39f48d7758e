//! What arrives after a reply and is judged: feedback and retracted next states.

use clawhost_chat::Message;
use serde::{Deserialize, Serialize};

use crate::ids::TurnId;
use crate::string_enum::string_enum;

string_enum! {
    /// Judging state of a turn.
    JudgingState {
        /// No evidence to judge yet.
        Waiting = "waiting",
        /// Complete, with a next state or feedback that no judgement has seen.
        Ready = "ready",
        /// Judged.
        Done = "done",
        /// Not judged, or judged without a sample; `reason` says why.
        Skipped = "skipped",
    }
}

/// User feedback on a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// The turn.
    pub turn: TurnId,
    /// Score from −1 to 1.
    pub score: Option<f32>,
    /// Comment.
    pub text: Option<String>,
    /// Unix milliseconds.
    pub ms: i64,
}

/// A next state to retract, because its request turned out not to continue the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRetraction {
    /// The turn whose next state it is.
    pub turn: TurnId,
    /// The reason, in text.
    pub reason: String,
    /// Time of the retraction, unix milliseconds.
    pub ms: i64,
}

/// A retracted next state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retraction {
    /// Id of the retraction, from 1.
    pub id: i64,
    /// The turn whose next state it was.
    pub turn: TurnId,
    /// The reason, in text.
    pub reason: String,
    /// Time of the retraction, unix milliseconds.
    pub ms: i64,
    /// The turn whose request contained it, if known.
    pub source: Option<TurnId>,
    /// The messages.
    pub messages: Vec<Message>,
    /// Arrival time of the messages, unix milliseconds.
    pub came_ms: i64,
    /// Whether a judgement had seen it.
    pub judged: bool,
}
