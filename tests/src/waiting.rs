//! Waiting for a condition: checked whenever the journal changes, and every few milliseconds for conditions outside the
//! journal.

use std::time::{Duration, Instant};

use clawhost_journal::Journal;

/// Timeout of every wait; longer than any condition takes on a busy machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Poll interval while the journal does not change.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `ready` returns a value.
///
/// # Panics
/// After [`WAIT_TIMEOUT`], with `what` in the message.
pub async fn until<T>(journal: &Journal, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let mut changes = journal.watch();
    loop {
        changes.mark_unchanged();
        if let Some(value) = ready() {
            return value;
        }
        assert!(
            began.elapsed() < WAIT_TIMEOUT,
            "timed out waiting until {what}"
        );
        // On a change or a timeout the condition is checked again.
        let _ = tokio::time::timeout(POLL_INTERVAL, changes.changed()).await;
    }
}
