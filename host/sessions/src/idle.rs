//! Ends idle sessions.
//!
//! Few clients signal the end of a session. A session whose last request or reply is older than the idle time ends: its
//! last turns are closed without a next state, still accept feedback, and become ready again if the client returns.

use std::time::Duration;

use clawhost_journal::{SessionId, now_ms};
use tokio::sync::watch;

use crate::error::SessionError;
use crate::sessions::Sessions;

/// Maximum time between two checks while a session is open.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time between two attempts to record pending ends of turns.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two checks, so that a tiny idle time does not keep a core busy.
const MIN_PAUSE: Duration = Duration::from_millis(5);

impl Sessions {
    /// Ends idle sessions until `stop` becomes true or its sender is dropped. Checks again after a part of the idle time
    /// while a session is open, and waits for the journal to change while none is. Also retries ends of turns that the
    /// journal could not record.
    pub async fn sweep_idle(self, mut stop: watch::Receiver<bool>) {
        let mut changes = self.journal.watch();
        let pause = (self.options.idle_timeout / 8).clamp(MIN_PAUSE, MAX_PAUSE);
        while !*stop.borrow() {
            changes.borrow_and_update();
            let sessions = self.clone();
            let swept = tokio::task::spawn_blocking(move || sessions.sweep_once()).await;
            let (pending, something_open) = swept.unwrap_or_else(|error| {
                tracing::error!(%error, "the sweep of idle sessions panicked; retrying");
                (false, true)
            });
            let wake = async {
                if pending {
                    tokio::time::sleep(RETRY_INTERVAL.min(pause)).await;
                } else if something_open {
                    tokio::time::sleep(pause).await;
                } else if changes.changed().await.is_err() {
                    // The journal is closed: only `stop` can end this now.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = wake => {}
                // The first attempt is immediate; the following ones wait.
                () = self.pending_ends.added.notified(), if !pending => {}
                gone = stop.changed() => if gone.is_err() { return },
            }
        }
    }

    /// Records pending ends of turns and ends idle sessions. Returns whether an end of a turn is still pending, and
    /// whether any session is still open.
    fn sweep_once(&self) -> (bool, bool) {
        let pending = self.pending_ends.flush(&self.journal);
        match self.end_idle() {
            Ok((ended, open)) => {
                if !ended.is_empty() {
                    tracing::info!(sessions = ended.len(), "idle sessions ended");
                }
                (pending, open)
            }
            Err(error) => {
                tracing::error!(%error, "cannot end idle sessions; retrying");
                (pending, true)
            }
        }
    }

    /// Ends idle sessions once. Returns the ended sessions and whether any session is still open.
    fn end_idle(&self) -> Result<(Vec<SessionId>, bool), SessionError> {
        let idle_ms = i64::try_from(self.options.idle_timeout.as_millis()).unwrap_or(i64::MAX);
        let mut ended = Vec::new();
        for session in self
            .journal
            .idle_sessions(now_ms().saturating_sub(idle_ms))?
        {
            self.end_session_locked(&session, "idle")?;
            ended.push(session);
        }
        // A session with a running turn is not listed; the end of that turn wakes the sweep.
        let open = !self.journal.idle_sessions(i64::MAX)?.is_empty();
        Ok((ended, open))
    }
}
