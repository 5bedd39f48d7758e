//! Deferred judgements: those whose calls the host could not finish, and when to retry each.
//!
//! Their turns stay ready in the journal, so a restart retries them at once. The receipts of earlier attempts are kept
//! here until the judgement is recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use clawhost_config::JudgingOptions;
use clawhost_journal::TurnId;
use tokio::time::Instant;

use crate::job::{JudgeJob, PreviousAttempts};
use crate::panel::Deferral;

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct FinishedJob {
    pub(crate) turns: Vec<TurnId>,
    /// How often it was deferred before.
    pub(crate) deferrals: u32,
}

/// Deferred jobs, keyed by their first turn.
#[derive(Debug, Default)]
pub(crate) struct DeferredQueue {
    pub(crate) jobs: BTreeMap<TurnId, DeferredJob>,
}

#[derive(Debug)]
pub(crate) struct DeferredJob {
    due: Instant,
    previous: PreviousAttempts,
}

impl DeferredQueue {
    /// Defers a judgement. The wait doubles with each deferral.
    pub(crate) fn push(
        &mut self,
        finished: FinishedJob,
        deferral: Deferral,
        options: &JudgingOptions,
    ) {
        let Some(first) = finished.turns.first() else {
            return;
        };
        let deferrals = finished.deferrals + 1;
        let job = DeferredJob {
            due: Instant::now() + deferral_wait(options, deferrals),
            previous: PreviousAttempts {
                deferrals,
                receipts: deferral.receipts,
            },
        };
        self.jobs.insert(*first, job);
    }

    /// Removes and returns what earlier attempts of the job left if it may run now, or `None` while it is not due.
    pub(crate) fn take_due(&mut self, turns: &[TurnId]) -> Option<PreviousAttempts> {
        let first = turns.first()?;
        match self.jobs.get(first) {
            Some(job) if job.due > Instant::now() => None,
            Some(_) => self.jobs.remove(first).map(|job| job.previous),
            None => Some(PreviousAttempts::default()),
        }
    }

    /// Completes when the first job is due; never completes when there is none.
    pub(crate) async fn next_due(&self) {
        match self.jobs.values().map(|job| job.due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Removes due jobs whose turns are no longer ready, because their sessions were deleted. All other due jobs start
    /// at once, so [`DeferredQueue::next_due`] never completes in vain.
    pub(crate) fn remove_stale(&mut self, ready: &[JudgeJob]) {
        if self.jobs.is_empty() {
            return;
        }
        let now = Instant::now();
        let ready: Vec<TurnId> = ready
            .iter()
            .filter_map(|job| job.turns().first().copied())
            .collect();
        self.jobs
            .retain(|turn, job| job.due > now || ready.contains(turn));
    }
}

/// The longest wait before a deferred judgement is retried.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The wait after this many deferrals.
pub(crate) fn deferral_wait(options: &JudgingOptions, deferrals: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(deferrals.saturating_sub(1));
    options
        .deferral_backoff
        .saturating_mul(doubled)
        .min(LONGEST_WAIT)
}
