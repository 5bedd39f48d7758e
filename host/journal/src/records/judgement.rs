//! Verdicts, judgements and samples.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    NewExperience, NewHint, PluginMetrics, Retraction, SampleHint, SampleState, TurnRecord,
};
use crate::ids::{SampleId, SessionId, StepId, TurnId};

/// Result of a judge: a reward, or a reason for no verdict. No verdict is never a zero reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum VerdictOutcome {
    /// A verdict.
    Verdict {
        /// Reward; finite.
        reward: f32,
        /// Whether the judge accepts the turn for training.
        accept: bool,
    },
    /// No verdict.
    None {
        /// The reason.
        reason: String,
    },
}

/// One vote behind a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VoteRecord {
    /// Score, in the range of the reward.
    pub score: f32,
    /// The reason.
    pub rationale: String,
    /// The votes of this attempt, if the vote is one of several attempts of a judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<Vec<VoteRecord>>,
}

/// A verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictRecord {
    /// `plugin:<name>` or `user`.
    pub source: String,
    /// sha256 of the judge component, in hex.
    pub digest: Option<String>,
    /// The reward, or the reason for no verdict.
    pub outcome: VerdictOutcome,
    /// The judge's own votes for a single attempt, else one vote per attempt; `None` where an attempt gave no verdict.
    pub votes: Vec<Option<VoteRecord>>,
    /// Explanation in text.
    pub rationale: String,
    /// Further metrics of the judge.
    pub metrics: PluginMetrics,
    /// Unix milliseconds.
    pub ms: i64,
}

/// A recorded judgement of a turn: its evidence and its verdicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgementRecord {
    /// Whether it saw a next state.
    pub next_state: bool,
    /// The next state that it saw, if that was retracted later.
    pub retracted: Option<Retraction>,
    /// How many pieces of feedback it saw, counted from the first.
    pub feedback: u32,
    /// Whether all choices of the request were judged as a group.
    pub together: bool,
    /// The verdicts, in order.
    pub verdicts: Vec<VerdictRecord>,
}

/// A judgement to insert.
#[derive(Debug, Clone, Copy)]
pub struct NewJudgement<'a> {
    /// The turn and the evidence that was judged.
    pub turn: EvidenceSnapshot,
    /// Verdicts of the judges and the user, in order.
    pub verdicts: &'a [VerdictRecord],
    /// Results of the hint extractors.
    pub hints: &'a [NewHint],
    /// The hint that is kept as experience.
    pub experience: Option<NewExperience>,
    /// The receipts of all plugin calls.
    pub receipts: &'a [Value],
    /// The outcome.
    pub outcome: JudgementOutcome<'a>,
}

/// Outcome of a judgement.
#[derive(Debug, Clone, Copy)]
pub enum JudgementOutcome<'a> {
    /// A sample, which replaces an earlier one that is still queued.
    Sample(&'a NewSample),
    /// No sample, for this reason; an earlier one that is still queued is dropped.
    Skipped(&'a str),
    /// No sample and no reason; an earlier one that is still queued is dropped.
    NoSample,
    /// Keeps the outcome of the earlier judgement: its sample stays as it is. If there is none, this is the reason.
    KeepPrevious(Option<&'a str>),
}

/// What a sample was made from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampleProvenance {
    /// The verdicts behind its reward.
    pub verdicts: Vec<VerdictSource>,
    /// Digests of all components that contributed, ascending.
    pub components: Vec<String>,
    /// The extractors of its hints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<HintSource>,
    /// Why the turn stands for its session, if the session was neutral.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<NeutralChoice>,
    /// Its position in an episode, if an environment made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode: Option<EpisodeStep>,
}

/// A verdict behind a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictSource {
    /// `plugin:<name>` or `user`.
    pub source: String,
    /// sha256 of the judge component, in hex.
    pub digest: Option<String>,
    /// The reward, or the reason for no verdict.
    pub outcome: VerdictOutcome,
}

/// An extractor of a sample's hints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HintSource {
    /// `plugin:<name>`.
    pub source: String,
    /// sha256 of the extractor component, in hex.
    pub digest: String,
}

/// How one turn was chosen from a neutral session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeutralChoice {
    /// The rule.
    pub rule: String,
    /// Number of neutral turns.
    pub neutral_turns: usize,
    /// Mean logprob of the chosen reply.
    pub mean_logprob: f64,
}

/// Position of a sample in an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeStep {
    /// Name of its trajectory.
    pub trajectory: String,
    /// Step, from 0.
    pub step: u32,
    /// Votes on the step, or on the steps of a sample that has several; empty if steps are not judged, and the outcome alone
    /// counts.
    pub votes: Vec<f64>,
    /// Whether steps are judged. A judged sample without votes is not compared: no vote is not a vote of 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub judged: bool,
    /// Factor on its advantage: the weight of its environment.
    #[serde(default = "full_weight")]
    pub weight: f64,
}

fn full_weight() -> f64 {
    1.0
}

/// A training sample to insert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewSample {
    /// The turn.
    pub turn: TurnId,
    /// Reward; finite. `None` without a verdict: then the turn must have a hint, which is the only training signal.
    /// No reward is never a zero.
    pub reward: Option<f32>,
    /// Key of the baseline (running mean) for the advantage.
    pub baseline_key: String,
    /// What the sample was made from.
    pub provenance: SampleProvenance,
}

/// A recorded sample with the token data that a training step needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRecord {
    /// The sample.
    pub id: SampleId,
    /// The turn that it was made from.
    pub turn: TurnId,
    /// The session of that turn.
    pub session: SessionId,
    /// The group of that turn.
    pub group: String,
    /// Its reward. `None` without a verdict: its hints are the only training signal. No reward is never a zero.
    pub reward: Option<f32>,
    /// The current hints of its turn, oldest first. If an extractor gave hints in several judgements, only those of the
    /// newest one.
    #[serde(default)]
    pub hints: Vec<SampleHint>,
    /// Key of the baseline (running mean) for the advantage.
    pub baseline_key: String,
    /// What the sample was made from.
    pub provenance: SampleProvenance,
    /// Its state.
    pub state: SampleState,
    /// The drop reason.
    pub reason: Option<String>,
    /// The step that trained or dropped it.
    pub step: Option<StepId>,
    /// The advantage that it trained with.
    pub advantage: Option<f32>,
    /// Creation time, unix milliseconds.
    pub created_ms: i64,
    /// Token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The sampled token ids.
    pub token_ids: Vec<u32>,
    /// Logprobs under the distribution that was sampled from; one per token.
    pub logprobs: Vec<f32>,
    /// Logprobs under the full softmax at the sampling temperature; one per token.
    pub full_logprobs: Vec<f32>,
    /// Positions of tokens that a constraint forced, ascending: they do not train. Default: none.
    #[serde(default)]
    pub forced: Vec<u32>,
    /// Sampling temperature.
    pub temperature: f32,
    /// Version of the adapter that sampled it.
    pub adapter_version: u64,
}

/// The evidence that a judgement saw, so that evidence that arrives later is judged too.
///
/// Converted from the [`TurnRecord`] that the judges saw. Converted from a bare [`TurnId`], it means all evidence that
/// the journal holds at commit time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvidenceSnapshot {
    pub(crate) turn: TurnId,
    pub(crate) evidence: Option<Evidence>,
}

/// The part of a turn that judges use and that can still grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) next_state: bool,
    /// Number of retracted next states before it; identifies the next state.
    pub(crate) retractions: usize,
    pub(crate) feedback: usize,
}

impl From<TurnId> for EvidenceSnapshot {
    fn from(turn: TurnId) -> EvidenceSnapshot {
        EvidenceSnapshot {
            turn,
            evidence: None,
        }
    }
}

impl From<&TurnRecord> for EvidenceSnapshot {
    fn from(record: &TurnRecord) -> EvidenceSnapshot {
        EvidenceSnapshot {
            turn: record.id,
            evidence: Some(Evidence {
                next_state: record.next_state.is_some(),
                retractions: record.retractions.len(),
                feedback: record.feedback.len(),
            }),
        }
    }
}
