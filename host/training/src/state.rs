//! Status of training, for `/healthz`, `clawhost status` and the demo.

use std::sync::Arc;

use clawhost_journal::{AdapterOwner, StaleCount};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::queue::describe_stale_samples;

/// A shared handle to the status of training; cheap to clone, never blocks the loop.
#[derive(Debug, Clone)]
pub struct TrainingState {
    cell: Arc<watch::Sender<TrainingSnapshot>>,
}

/// Status of training at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TrainingSnapshot {
    /// Queued samples.
    pub queued: u64,
    /// All samples in the journal, in any state, when the last step ended.
    pub samples: u64,
    /// Samples that a step dropped as stale.
    pub stale: u64,
    /// A note on stale samples and the settings that reduce them; none if no sample went stale.
    pub stale_note: Option<String>,
    /// Whether a step is running.
    pub running: bool,
    /// Steps recorded in the journal, of every outcome.
    pub steps: u64,
    /// Steps that published an adapter.
    pub published: u64,
    /// Version that training continues from, served unless another one is pinned; 0 is the base model.
    pub version: u64,
    /// Digest of that adapter; empty for the base model.
    pub digest: String,
    /// Owner of that adapter; none is the shared one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<AdapterOwner>,
    /// Owners with adapter versions of their own.
    #[serde(skip_serializing_if = "is_zero")]
    pub owners: u64,
    /// Outcome of the last step since startup: `published`, `no_signal` or `failed`.
    pub last_outcome: Option<String>,
    /// Why the last step published no adapter.
    pub last_reason: Option<String>,
    /// Metrics of the last recorded step, even from before startup.
    pub last_metrics: Option<Value>,
    /// Why training waits although samples are queued; none if it does not wait.
    pub waits: Option<String>,
    /// Why the last attempt could not record a step (for example a full disk); none if it succeeded.
    pub last_error: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl TrainingState {
    pub(crate) fn new(first: TrainingSnapshot) -> Self {
        Self {
            cell: Arc::new(watch::Sender::new(first)),
        }
    }

    /// The current status.
    pub fn snapshot(&self) -> TrainingSnapshot {
        self.cell.borrow().clone()
    }

    /// Subscribes to changes of the status.
    pub fn watch(&self) -> watch::Receiver<TrainingSnapshot> {
        self.cell.subscribe()
    }

    /// Updates the count of stale samples.
    pub(crate) fn set_stale(&self, count: StaleCount) {
        self.update(|s| {
            (s.samples, s.stale) = (count.samples, count.stale);
            s.stale_note = describe_stale_samples(count);
        });
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut TrainingSnapshot)) {
        self.cell.send_modify(change);
    }
}
