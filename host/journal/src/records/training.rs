//! Steps and adapters: what was made of the samples.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{SampleId, StepId};
use crate::words::words;

words! {
    /// What a step came to.
    StepOutcome {
        /// A new adapter came of it, which is served unless a person holds another version.
        Published = "published",
        /// Nothing changed, and nothing is claimed.
        NoSignal = "no_signal",
        /// It broke off; its samples are dropped or stay queued.
        Failed = "failed",
    }
}

/// A sample that waits for a step, without its token data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedSample {
    /// Which sample.
    pub id: SampleId,
    /// The group of its turn.
    pub group: String,
    /// Version of the adapter that sampled it.
    pub adapter_version: u64,
    /// When it was made, unix milliseconds.
    pub created_ms: i64,
}

/// Samples, and those of them that went stale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StaleCount {
    /// Samples that judging made, in any state.
    pub samples: u64,
    /// Those that a step dropped because they were sampled by too old an adapter.
    pub stale: u64,
}

/// A step to be recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewStep {
    /// Unix milliseconds.
    pub started_ms: i64,
    /// Unix milliseconds.
    pub ended_ms: i64,
    /// What it came to.
    pub outcome: StepOutcome,
    /// Why, when it is not published.
    pub reason: Option<String>,
    /// Its numbers.
    pub metrics: Value,
    /// Samples with the advantage they were trained with. Empty for a failed step.
    pub trained: Vec<(SampleId, f32)>,
    /// Samples that will never be trained, with the reason.
    pub dropped: Vec<(SampleId, String)>,
    /// The adapter it made. There must be one when the step is published.
    pub adapter: Option<NewAdapter>,
    /// Entries of the journal's key-value table that change with the step.
    pub meta: Vec<(String, String)>,
}

/// An adapter to be recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewAdapter {
    /// From 1 up, never used before.
    pub version: u64,
    /// Version it was trained from; 0 is the base model.
    pub parent: u64,
    /// sha256 over its tensors, in hex.
    pub digest: String,
    /// Where its files lie.
    pub path: String,
    /// What it was made from.
    pub provenance: Value,
}

/// An adapter as recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterRow {
    /// From 1 up.
    pub version: u64,
    /// Version it was trained from; 0 is the base model.
    pub parent: u64,
    /// sha256 over its tensors, in hex.
    pub digest: String,
    /// Where its files lie.
    pub path: String,
    /// What it was made from.
    pub provenance: Value,
    /// When it was recorded, unix milliseconds.
    pub created_ms: i64,
    /// `active` (served; at most one), `retired` (was active) or `candidate` (never was).
    pub state: String,
    /// The step that made it.
    pub step: Option<StepId>,
}

/// A step as recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Which step.
    pub id: StepId,
    /// Unix milliseconds.
    pub started_ms: i64,
    /// Unix milliseconds.
    pub ended_ms: i64,
    /// What it came to.
    pub outcome: StepOutcome,
    /// Why, when it is not published.
    pub reason: Option<String>,
    /// Its numbers.
    pub metrics: Value,
    /// Samples it trained, with the advantage, as far as their session was not forgotten.
    pub trained: Vec<(SampleId, f32)>,
    /// Samples it dropped, with the reason, as far as their session was not forgotten.
    pub dropped: Vec<(SampleId, String)>,
    /// How many it trained, whatever was forgotten since.
    pub trained_count: u64,
    /// How many it dropped, whatever was forgotten since.
    pub dropped_count: u64,
    /// Version of the adapter it made.
    pub adapter: Option<u64>,
}
