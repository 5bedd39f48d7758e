//! Waiting for a condition: looked at again whenever the journal changed, and every few milliseconds for
//! what the journal does not know.

use std::time::{Duration, Instant};

use clawhost_journal::Journal;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two looks when the journal is still.
const TICK: Duration = Duration::from_millis(5);

/// Waits until `ready` gives a value.
///
/// # Panics
/// After [`PATIENCE`], with `what` was waited for.
pub async fn until<T>(journal: &Journal, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let mut changes = journal.watch();
    loop {
        changes.mark_unchanged();
        if let Some(value) = ready() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        // Either way it is looked at again.
        let _ = tokio::time::timeout(TICK, changes.changed()).await;
    }
}
