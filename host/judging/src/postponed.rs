//! Judgements that were put off because the host could not finish a call: when each is tried again.
//!
//! Their turns stay ready in the journal, so a restart tries them at once. What earlier tries cost is kept here until
//! the judgement is recorded.

use std::collections::BTreeMap;

use clawhost_journal::TurnId;
use tokio::time::Instant;

use crate::judgement::Deferred;
use crate::options::JudgingOptions;
use crate::work::{Earlier, Work};

/// A piece of work that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) turns: Vec<TurnId>,
    /// Times that it was put off before.
    pub(crate) deferrals: u32,
}

/// Work that waits for its next try, by its first turn.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    pub(crate) works: BTreeMap<TurnId, Waiting>,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    due: Instant,
    earlier: Earlier,
}

impl Postponed {
    /// Puts a judgement off. Its wait doubles with each time.
    pub(crate) fn put_off(&mut self, done: Done, deferred: Deferred, options: &JudgingOptions) {
        let Some(first) = done.turns.first() else {
            return;
        };
        let deferrals = done.deferrals + 1;
        let waiting = Waiting {
            due: Instant::now() + options.defer_wait(deferrals),
            earlier: Earlier {
                deferrals,
                receipts: deferred.receipts,
            },
        };
        self.works.insert(*first, waiting);
    }

    /// What earlier tries of the work on these turns left, when it may be tried now; none when its time has not come.
    pub(crate) fn take_due(&mut self, turns: &[TurnId]) -> Option<Earlier> {
        let first = turns.first()?;
        match self.works.get(first) {
            Some(waiting) if waiting.due > Instant::now() => None,
            Some(_) => self.works.remove(first).map(|waiting| waiting.earlier),
            None => Some(Earlier::default()),
        }
    }

    /// Ends when the first of them is due; never when there is none.
    pub(crate) async fn next_due(&self) {
        match self.works.values().map(|waiting| waiting.due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Drops those that are due and not among what is ready, because their sessions were forgotten. What is left and
    /// due is tried at once, so [`Postponed::next_due`] never ends for nothing.
    pub(crate) fn forget_gone(&mut self, ready: &[Work]) {
        if self.works.is_empty() {
            return;
        }
        let now = Instant::now();
        let ready: Vec<TurnId> = ready
            .iter()
            .filter_map(|work| work.turns().first().copied())
            .collect();
        self.works
            .retain(|turn, waiting| waiting.due > now || ready.contains(turn));
    }
}
