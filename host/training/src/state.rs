//! What training is doing, for `/healthz`, `status` and the demo.

use std::sync::Arc;

use clawhost_journal::StaleCount;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::queue::stale_note;

/// A shared view of training; cheap to clone, never blocks the loop.
#[derive(Debug, Clone)]
pub struct TrainingState {
    cell: Arc<watch::Sender<TrainingSnapshot>>,
}

/// Training at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TrainingSnapshot {
    /// Samples that wait for a step.
    pub queued: u64,
    /// Samples that judging had made, in any state, when the last step ended.
    pub samples: u64,
    /// Those of them that a step dropped because they were sampled by too old an adapter.
    pub stale: u64,
    /// What that means and which settings change it; none while no sample went stale.
    pub stale_note: Option<String>,
    /// Whether a step is being computed.
    pub running: bool,
    /// Steps recorded in the journal, of every outcome.
    pub steps: u64,
    /// Those that published an adapter.
    pub published: u64,
    /// Version that is trained from, and served unless a person holds another; 0 is the base.
    pub version: u64,
    /// Digest of that adapter; empty for the base.
    pub digest: String,
    /// Outcome of the last step since the start: `published`, `no_signal` or `failed`.
    pub last_outcome: Option<String>,
    /// Why the last step published nothing.
    pub last_reason: Option<String>,
    /// Metrics of the last step, also of one before this start.
    pub last_metrics: Option<Value>,
    /// Why it waits although there are samples; none while it need not.
    pub waits: Option<String>,
    /// What keeps a step from being recorded (a full disk, say); none when the last attempt worked.
    pub last_error: Option<String>,
}

impl TrainingState {
    pub(crate) fn new(first: TrainingSnapshot) -> Self {
        Self {
            cell: Arc::new(watch::Sender::new(first)),
        }
    }

    /// Training as it is now.
    pub fn snapshot(&self) -> TrainingSnapshot {
        self.cell.borrow().clone()
    }

    /// Tells of every change.
    pub fn watch(&self) -> watch::Receiver<TrainingSnapshot> {
        self.cell.subscribe()
    }

    /// Shows how many samples went stale.
    pub(crate) fn show_stale(&self, count: StaleCount) {
        self.change(|s| {
            (s.samples, s.stale) = (count.samples, count.stale);
            s.stale_note = stale_note(count);
        });
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut TrainingSnapshot)) {
        self.cell.send_modify(change);
    }
}
