//! Training steps and adapters.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AdapterOwner, DistilledExperience};
use crate::ids::{SampleId, StepId};
use crate::string_enum::string_enum;

string_enum! {
    /// State of a sample. It changes once, from `queued`.
    SampleState {
        /// Waits for a training step.
        Queued = "queued",
        /// Was part of a training step.
        Trained = "trained",
        /// Will never train; `reason` says why.
        Dropped = "dropped",
    }
}

string_enum! {
    /// Outcome of a training step.
    StepOutcome {
        /// It made a new adapter, which is served unless another version is pinned.
        Published = "published",
        /// It changed no weights.
        NoSignal = "no_signal",
        /// It failed; its samples are dropped or stay queued.
        Failed = "failed",
    }
}

/// A queued sample without its token data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedSample {
    /// The sample.
    pub id: SampleId,
    /// The group of its turn.
    pub group: String,
    /// Version of the adapter that sampled it.
    pub adapter_version: u64,
    /// Creation time, unix milliseconds.
    pub created_ms: i64,
}

/// The number of samples and of stale samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StaleCount {
    /// Samples in any state.
    pub samples: u64,
    /// Samples that were dropped because their adapter version was too old.
    pub stale: u64,
}

/// A training step to insert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewStep {
    /// Start time, unix milliseconds.
    pub started_ms: i64,
    /// End time, unix milliseconds.
    pub ended_ms: i64,
    /// Its outcome.
    pub outcome: StepOutcome,
    /// The reason, unless it is published.
    pub reason: Option<String>,
    /// Its metrics.
    pub metrics: Value,
    /// Trained samples with their advantages. Empty for a failed step.
    pub trained: Vec<(SampleId, f32)>,
    /// Dropped samples with the reasons.
    pub dropped: Vec<(SampleId, String)>,
    /// The adapter that it made. Required for a published step.
    pub adapter: Option<NewAdapter>,
    /// Entries of the journal's key-value table that change with the step.
    pub meta: Vec<(String, String)>,
    /// The experience that was distilled. Default: none.
    #[serde(default)]
    pub experience: Option<DistilledExperience>,
}

/// An adapter to insert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewAdapter {
    /// Version, from 1, never used before.
    pub version: u64,
    /// Version that it was trained from; 0 is the base model.
    pub parent: u64,
    /// sha256 over its tensors, in hex.
    pub digest: String,
    /// Path of its files.
    pub path: String,
    /// What it was made from.
    pub provenance: Value,
}

/// A recorded adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterRow {
    /// Version, from 1.
    pub version: u64,
    /// Version that it was trained from; 0 is the base model.
    pub parent: u64,
    /// sha256 over its tensors, in hex.
    pub digest: String,
    /// Path of its files.
    pub path: String,
    /// What it was made from.
    pub provenance: Value,
    /// Time of recording, unix milliseconds.
    pub created_ms: i64,
    /// `active` (served; at most one of each owner), `retired` (was active) or `candidate` (was never active).
    pub state: String,
    /// The step that made it.
    pub step: Option<StepId>,
    /// Owner of its chain; `None` is the shared adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AdapterOwner>,
}

/// A recorded training step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step.
    pub id: StepId,
    /// Start time, unix milliseconds.
    pub started_ms: i64,
    /// End time, unix milliseconds.
    pub ended_ms: i64,
    /// Its outcome.
    pub outcome: StepOutcome,
    /// The reason, unless it is published.
    pub reason: Option<String>,
    /// Its metrics.
    pub metrics: Value,
    /// Trained samples with their advantages, without those of deleted sessions.
    pub trained: Vec<(SampleId, f32)>,
    /// Dropped samples with the reasons, without those of deleted sessions.
    pub dropped: Vec<(SampleId, String)>,
    /// Number of trained samples, including those deleted since.
    pub trained_count: u64,
    /// Number of dropped samples, including those deleted since.
    pub dropped_count: u64,
    /// Version of the adapter that it made.
    pub adapter: Option<u64>,
    /// Owner of the adapter that it trained; `None` is the shared adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AdapterOwner>,
}
