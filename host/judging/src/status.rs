//! Status of judging for `/healthz`, `/metrics` and the `status` command.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

/// A shared status handle; cheap to clone, never blocks the judging loop.
#[derive(Debug, Clone)]
pub struct JudgingStatus {
    cell: Arc<watch::Sender<JudgingSnapshot>>,
}

/// The status at one moment; counts are since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JudgingSnapshot {
    /// Turns that wait to be judged, plus requests whose choices wait to be judged together.
    pub ready: u64,
    /// The same, for those being judged.
    pub running: u64,
    /// Judged turns.
    pub judged: u64,
    /// Requests whose choices were judged together.
    pub together: u64,
    /// Created samples.
    pub samples: u64,
    /// Created samples without a reward, trained by their hints alone.
    pub samples_by_hint: u64,
    /// Missing verdicts, by reason.
    pub no_verdict: BTreeMap<String, u64>,
    /// Extracted hints.
    pub hints: u64,
    /// Extractor calls without a hint, by reason.
    pub no_hint: BTreeMap<String, u64>,
    /// Turns without a sample, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Retries after a transient error.
    pub retries: u64,
    /// Deferred judgements (the host could not finish a call); each is retried.
    pub deferred: u64,
    /// Quarantined plugins.
    pub quarantined: Vec<String>,
    /// Why judging stopped; none while it runs.
    pub stopped: Option<String>,
    /// The journal error of the last failed write; none when the last write succeeded.
    pub last_error: Option<String>,
}

impl JudgingStatus {
    pub(crate) fn new() -> Self {
        Self {
            cell: Arc::new(watch::Sender::new(JudgingSnapshot::default())),
        }
    }

    /// The current status.
    pub fn snapshot(&self) -> JudgingSnapshot {
        self.cell.borrow().clone()
    }

    /// A receiver that is notified of every change.
    pub fn watch(&self) -> watch::Receiver<JudgingSnapshot> {
        self.cell.subscribe()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut JudgingSnapshot)) {
        self.cell.send_modify(change);
    }
}
