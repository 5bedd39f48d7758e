//! Ends sessions that nobody talks to any more.
//!
//! Few clients ever say that they are done. A session whose last request or reply is older than the idle time is over:
//! its last turns are closed without a next state, open to feedback, and open again if the client comes back.

use std::time::Duration;

use clawhost_journal::{SessionId, now_ms};
use tokio::sync::watch;

use crate::collecting::Sessions;
use crate::error::SessionError;

/// Longest time between two looks at the clock while a session is open.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time between two tries to record what a full disk refused.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest, so that a tiny idle time does not keep a core busy.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

impl Sessions {
    /// Ends idle sessions until `stop` becomes true (or its sender is gone). Looks again after a part of the idle time
    /// while a session is open, and waits for the journal to change while none is. Records the ends of turns that the
    /// journal refused before.
    pub async fn sweep_idle(self, mut stop: watch::Receiver<bool>) {
        let mut changes = self.journal.watch();
        let pause = (self.options.idle / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        while !*stop.borrow() {
            changes.borrow_and_update();
            let unrecorded = self.unrecorded.record(&self.journal);
            let something_open = match self.end_idle() {
                Ok((ended, open)) => {
                    if !ended.is_empty() {
                        tracing::info!(sessions = ended.len(), "idle sessions ended");
                    }
                    open
                }
                Err(error) => {
                    tracing::error!(%error, "idle sessions could not be ended; trying again");
                    true
                }
            };
            let wake = async {
                if unrecorded {
                    tokio::time::sleep(RETRY.min(pause)).await;
                } else if something_open {
                    tokio::time::sleep(pause).await;
                } else if changes.changed().await.is_err() {
                    // The journal is gone with its last holder: only `stop` can end this now.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = wake => {}
                // The first try is at once; what is left then waits.
                () = self.unrecorded.added.notified(), if !unrecorded => {}
                gone = stop.changed() => if gone.is_err() { return },
            }
        }
    }

    /// One look: ends what is idle, and says what was ended and whether any session is still open.
    fn end_idle(&self) -> Result<(Vec<SessionId>, bool), SessionError> {
        let idle_ms = i64::try_from(self.options.idle.as_millis()).unwrap_or(i64::MAX);
        let mut ended = Vec::new();
        for session in self
            .journal
            .idle_sessions(now_ms().saturating_sub(idle_ms))?
        {
            self.end_undisturbed(&session, "idle")?;
            ended.push(session);
        }
        // A session whose reply is being made is not listed; its end wakes the sweep.
        let open = !self.journal.idle_sessions(i64::MAX)?.is_empty();
        Ok((ended, open))
    }
}
