//! Episodes of environments.

use clawhost_chat::Message;
use serde_json::Value;

use super::{Completion, NewTurn, SampleProvenance, SessionUpsert, VerdictRecord};

/// A finished episode to insert.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEpisode {
    /// Its session, which must not exist.
    pub session: SessionUpsert,
    /// Its turns, in order. Each becomes the parent of the next one.
    pub turns: Vec<NewEpisodeTurn>,
    /// The reward of the episode, which each of its samples gets; finite.
    pub reward: f32,
    /// The environment's verdict on the episode.
    pub verdict: VerdictRecord,
    /// The receipts of all plugin calls.
    pub receipts: Vec<Value>,
}

/// A turn of a finished episode.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEpisodeTurn {
    /// The turn; its parent is replaced.
    pub turn: NewTurn,
    /// Its reply. Observation tokens within it are among its forced positions.
    pub completion: Completion,
    /// What followed its last reply; may be empty.
    pub next_state: Vec<Message>,
    /// Key of the baseline of its sample.
    pub baseline_key: String,
    /// Verdicts on its single replies, beside that on the episode. They are recorded and are part of no reward.
    pub step_verdicts: Vec<VerdictRecord>,
    /// What its sample was made from.
    pub provenance: SampleProvenance,
}
