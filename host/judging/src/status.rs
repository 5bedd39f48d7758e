//! What judging is doing, for `/healthz`, `status` and the demo.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

/// A shared view of judging; cheap to clone, never blocks the loop.
#[derive(Debug, Clone)]
pub struct JudgingStatus {
    cell: Arc<watch::Sender<JudgingSnapshot>>,
}

/// Judging at one moment; counts are since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JudgingSnapshot {
    /// Turns that wait to be judged, and requests whose choices wait to be judged together.
    pub ready: u64,
    /// The same, of those that are being judged.
    pub running: u64,
    /// Turns that were judged.
    pub judged: u64,
    /// Requests whose choices were judged together.
    pub together: u64,
    /// Samples that were made.
    pub samples: u64,
    /// Those of them that have no reward: their hints alone teach.
    pub samples_by_hint: u64,
    /// Judges that gave no verdict, by reason.
    pub no_verdict: BTreeMap<String, u64>,
    /// Hints that were extracted.
    pub hints: u64,
    /// Extractors that gave no hint, by reason.
    pub no_hint: BTreeMap<String, u64>,
    /// Turns that gave no sample, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Tries after a transient error.
    pub retries: u64,
    /// Judgements that were put off because the host could not finish a call; each is tried again.
    pub deferred: u64,
    /// Plugins that are no longer called.
    pub quarantined: Vec<String>,
    /// Why judging stopped; none while it runs.
    pub stopped: Option<String>,
    /// What kept the last judgement from being recorded; none when the last one was.
    pub last_error: Option<String>,
}

impl JudgingStatus {
    pub(crate) fn new() -> Self {
        Self {
            cell: Arc::new(watch::Sender::new(JudgingSnapshot::default())),
        }
    }

    /// Judging as it is now.
    pub fn snapshot(&self) -> JudgingSnapshot {
        self.cell.borrow().clone()
    }

    /// Tells of every change.
    pub fn watch(&self) -> watch::Receiver<JudgingSnapshot> {
        self.cell.subscribe()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut JudgingSnapshot)) {
        self.cell.send_modify(change);
    }
}
