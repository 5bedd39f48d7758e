//! Ends of turns that the journal could not record, for example because the disk was full.
//!
//! A turn whose end is not recorded counts as running: its session never becomes idle and none of it can be judged. So
//! its end is kept in memory, with the partial reply, and retried until the journal records it. If the process stops
//! before that, the next start aborts the turn.

use std::sync::{Mutex, MutexGuard, PoisonError};

use clawhost_journal::{Completion, Finish, Journal, JournalError, TurnId};
use tokio::sync::Notify;

/// Maximum number of ends kept with their reply; further ones keep only the reason. More than any server has slots.
const MAX_KEPT_REPLIES: usize = 1024;

/// How a turn ended.
pub(crate) struct TurnEnd {
    pub(crate) turn: TurnId,
    pub(crate) reason: String,
    /// Whether it failed; otherwise it was cancelled.
    pub(crate) failed: bool,
    /// The partial reply.
    pub(crate) partial: Option<Completion>,
}

/// The queue of unrecorded ends.
#[derive(Default)]
pub(crate) struct PendingTurnEnds {
    ends: Mutex<Vec<TurnEnd>>,
    pub(crate) added: Notify,
}

impl PendingTurnEnds {
    /// Queues the end of a turn that the journal rejected with `error`, unless the turn has already ended or was deleted.
    pub(crate) fn add(&self, mut end: TurnEnd, error: &JournalError) {
        if is_already_closed(error) {
            return;
        }
        let mut ends = self.lock();
        if ends.len() >= MAX_KEPT_REPLIES || matches!(error, JournalError::Invalid(_)) {
            end.partial = None;
        }
        tracing::error!(turn = %end.turn, %error, "cannot record the end of a turn; retrying");
        ends.push(end);
        drop(ends);
        self.added.notify_one();
    }

    /// Records the queued ends. Returns whether any are left.
    pub(crate) fn flush(&self, journal: &Journal) -> bool {
        let mut waiting = std::mem::take(&mut *self.lock()).into_iter();
        while let Some(mut end) = waiting.next() {
            let TurnEnd {
                turn,
                reason,
                failed,
                partial,
            } = &mut end;
            if let Some(partial) = partial {
                partial.finish = Finish::Aborted;
            }
            let recorded = if *failed {
                journal.fail(*turn, reason, partial.as_ref())
            } else {
                journal.abort(*turn, reason, partial.as_ref())
            };
            match recorded {
                Ok(()) => tracing::info!(turn = %turn, "recorded the end of a turn"),
                Err(error) if is_already_closed(&error) => {}
                Err(_) => {
                    let mut ends = self.lock();
                    ends.push(end);
                    ends.extend(waiting);
                    return true;
                }
            }
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, Vec<TurnEnd>> {
        // The list stays consistent if a thread panics.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the error means that the turn has already ended or was deleted.
fn is_already_closed(error: &JournalError) -> bool {
    matches!(
        error,
        JournalError::UnknownTurn { .. } | JournalError::TurnEnded { .. }
    )
}
