//! Feedback, verdicts and samples: what was thought of a turn.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NewHint, Retraction, SampleHint, TurnRecord};
use crate::ids::{SampleId, SessionId, StepId, TurnId};
use crate::words::words;

words! {
    /// How far judging a turn has come.
    JudgingState {
        /// Nothing to judge it by yet.
        Waiting = "waiting",
        /// Complete, and with a next state or feedback that no judgement has seen.
        Ready = "ready",
        /// Judged.
        Done = "done",
        /// Not judged, with a reason.
        Skipped = "skipped",
    }
}

words! {
    /// What became of a sample. Moves once, away from `queued`.
    SampleState {
        /// Waits for a step.
        Queued = "queued",
        /// Was part of a step.
        Trained = "trained",
        /// Will never be trained, with a reason.
        Dropped = "dropped",
    }
}

/// What a user said of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// Which turn.
    pub turn: TurnId,
    /// −1 to 1.
    pub score: Option<f32>,
    /// In words.
    pub text: Option<String>,
    /// When, unix milliseconds.
    pub ms: i64,
}

/// What a judge gave: a reward, or none with a reason. None is never a zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum VerdictOutcome {
    /// A verdict.
    Verdict {
        /// Finite.
        reward: f32,
        /// Whether the judge lets the turn train.
        accept: bool,
    },
    /// No verdict.
    None {
        /// Why not.
        reason: String,
    },
}

/// A verdict to be recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewVerdict {
    /// `plugin:<name>` or `user`.
    pub source: String,
    /// sha256 of the component that gave it, in hex.
    pub digest: Option<String>,
    /// The reward, or why there is none.
    pub outcome: VerdictOutcome,
    /// The single votes.
    pub votes: Value,
    /// Why, in words.
    pub rationale: String,
    /// Further numbers of the judge.
    pub metrics: Value,
    /// When, unix milliseconds.
    pub ms: i64,
}

/// A verdict as recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictRecord {
    /// Number of the verdict, from 1 up.
    pub id: i64,
    /// Which turn.
    pub turn: TurnId,
    /// `plugin:<name>` or `user`.
    pub source: String,
    /// sha256 of the component that gave it, in hex.
    pub digest: Option<String>,
    /// The reward, or why there is none.
    pub outcome: VerdictOutcome,
    /// The single votes.
    pub votes: Value,
    /// Why, in words.
    pub rationale: String,
    /// Further numbers of the judge.
    pub metrics: Value,
    /// When, unix milliseconds.
    pub ms: i64,
}

/// One judgement of a turn: what it was based on, and what it came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgementRecord {
    /// Whether the next state was there.
    pub next_state: bool,
    /// That next state, where it was retracted after this judgement had seen it.
    pub retracted: Option<Retraction>,
    /// How many pieces of feedback, from the first, were there.
    pub feedback: u32,
    /// Whether it was one of all choices of a request.
    pub together: bool,
    /// The verdicts, in the order in which they were given.
    pub verdicts: Vec<VerdictRecord>,
}

/// A judgement to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewJudgement<'a> {
    /// The turn as it was judged, see [`TurnSeen`].
    pub turn: TurnSeen,
    /// What judges and the user gave, in order.
    pub verdicts: &'a [NewVerdict],
    /// What extractors gave.
    pub hints: &'a [NewHint],
    /// The receipts of all calls.
    pub receipts: &'a [Value],
    /// What comes of it.
    pub outcome: JudgementOutcome<'a>,
}

/// What comes of a judgement.
#[derive(Debug, Clone, Copy)]
pub enum JudgementOutcome<'a> {
    /// A sample; it takes the place of one that is still queued.
    Sample(&'a NewSample),
    /// No sample, for this reason; one that is still queued is dropped.
    Skipped(&'a str),
    /// Nothing to train; one that is still queued is dropped.
    Nothing,
    /// Whatever came of the judgement before: its sample stays as it is; where there is none, this is why.
    AsBefore(Option<&'a str>),
}

/// A turn that is to be trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewSample {
    /// Which turn.
    pub turn: TurnId,
    /// Finite. None where nobody gave one: then the turn must have a hint, and that alone teaches. Never a zero.
    pub reward: Option<f32>,
    /// Which running mean it is measured against.
    pub baseline_key: String,
    /// What it was made from.
    pub provenance: Value,
}

/// A sample with the token data that a step needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRecord {
    /// Which sample.
    pub id: SampleId,
    /// The turn it was made from.
    pub turn: TurnId,
    /// The session of that turn.
    pub session: SessionId,
    /// The group of that turn.
    pub group: String,
    /// Its reward. None where nobody gave one: only what its hints say can teach. Never a zero.
    pub reward: Option<f32>,
    /// The hints of its turn that there are now, oldest first. Of an extractor that gave some in several judgements,
    /// those of the newest one.
    #[serde(default)]
    pub hints: Vec<SampleHint>,
    /// Which running mean it is measured against.
    pub baseline_key: String,
    /// What it was made from.
    pub provenance: Value,
    /// What became of it.
    pub state: SampleState,
    /// Why it was dropped.
    pub reason: Option<String>,
    /// The step that trained or dropped it.
    pub step: Option<StepId>,
    /// The advantage it was trained with.
    pub advantage: Option<f32>,
    /// When it was made, unix milliseconds.
    pub created_ms: i64,
    /// Token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The sampled token ids.
    pub token_ids: Vec<u32>,
    /// Log-probs of the distribution that was sampled from; one per token.
    pub logprobs: Vec<f32>,
    /// Log-probs of the full softmax at the sampling temperature; one per token.
    pub full_logprobs: Vec<f32>,
    /// Places of the tokens at which a constraint left no choice, ascending: they never train. Default none.
    #[serde(default)]
    pub forced: Vec<u32>,
    /// Sampling temperature.
    pub temperature: f32,
    /// Version of the adapter that sampled it.
    pub adapter_version: u64,
}

/// What a judgement was based on, so that evidence which came meanwhile is judged too.
///
/// Made from the [`TurnRecord`] that the judges saw. Made from a bare [`TurnId`] it means: all
/// that the journal holds at the time of the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnSeen {
    pub(crate) turn: TurnId,
    pub(crate) evidence: Option<Evidence>,
}

/// The part of a turn that judges look at and that can still grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) next_state: bool,
    /// How many next states had been retracted before it: tells one next state from another.
    pub(crate) retractions: usize,
    pub(crate) feedback: usize,
}

impl From<TurnId> for TurnSeen {
    fn from(turn: TurnId) -> TurnSeen {
        TurnSeen {
            turn,
            evidence: None,
        }
    }
}

impl From<&TurnRecord> for TurnSeen {
    fn from(record: &TurnRecord) -> TurnSeen {
        TurnSeen {
            turn: record.id,
            evidence: Some(Evidence {
                next_state: record.next_state.is_some(),
                retractions: record.retractions.len(),
                feedback: record.feedback.len(),
            }),
        }
    }
}
