//! Ends of turns that the journal could not take, because the disk was full or refused.
//!
//! A turn whose end is not recorded counts as being generated: its session never becomes idle and nothing of it can be
//! judged. So its end is kept here until the journal takes it, with what there was of the reply. A process that ends
//! before that leaves it to the next start, which closes what was being generated.

use std::sync::{Mutex, MutexGuard, PoisonError};

use clawhost_journal::{Completion, Finish, Journal, JournalError, TurnId};
use tokio::sync::Notify;

/// Ends kept with their reply; of further ones only the reason is kept. More than any server has slots.
const REPLIES: usize = 1024;

/// How a turn ended.
pub(crate) struct TurnEnd {
    pub(crate) turn: TurnId,
    pub(crate) reason: String,
    /// Whether it was a fault of ours; else nobody waited any longer.
    pub(crate) failed: bool,
    /// What there was of the reply.
    pub(crate) partial: Option<Completion>,
}

/// The ends that wait.
#[derive(Default)]
pub(crate) struct Unrecorded {
    ends: Mutex<Vec<TurnEnd>>,
    pub(crate) added: Notify,
}

impl Unrecorded {
    /// Keeps the end of a turn that the journal refused with `error`, unless the turn has an end or is gone.
    pub(crate) fn add(&self, mut end: TurnEnd, error: &JournalError) {
        if closed(error) {
            return;
        }
        let mut ends = self.lock();
        if ends.len() >= REPLIES || matches!(error, JournalError::Invalid(_)) {
            end.partial = None;
        }
        tracing::error!(turn = %end.turn, %error, "the end of a turn could not be recorded; trying again until it is");
        ends.push(end);
        drop(ends);
        self.added.notify_one();
    }

    /// Records what waits, as far as the journal takes it; whether anything is left.
    pub(crate) fn record(&self, journal: &Journal) -> bool {
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
                Ok(()) => tracing::info!(turn = %turn, "the end of a turn is recorded now"),
                Err(error) if closed(&error) => {}
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
        // A panic elsewhere leaves the list as it was.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there is nothing left to record.
fn closed(error: &JournalError) -> bool {
    matches!(
        error,
        JournalError::UnknownTurn { .. } | JournalError::TurnEnded { .. }
    )
}
