//! Keeps apart the recording of a graph and what the driver does not do in a context in which a stream records: waiting
//! for the context, and loading a kernel when it first runs. All drivers of a GPU in a process have one context.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use super::super::lock;

static RECORDING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread records.
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which records a graph on this thread.
pub(super) fn record<T>(work: impl FnOnce() -> T) -> T {
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            RECORDS.set(false);
        }
    }
    let _recording = lock(&RECORDING);
    RECORDS.set(true);
    let _ended = Ended;
    work()
}

/// While it lives, no other thread records. Nothing on the thread that records itself, whose work has run once before, so
/// that it loads and allocates nothing.
pub(super) fn nothing_records() -> Option<MutexGuard<'static, ()>> {
    (!RECORDS.get()).then(|| lock(&RECORDING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_records_does_not_wait_for_itself() {
        assert!(nothing_records().is_some());
        assert!(record(|| nothing_records().is_none()));
        let panicked = std::panic::catch_unwind(|| record(|| panic!("a recording that fails")));
        assert!(panicked.is_err());
        assert!(nothing_records().is_some());
    }
}
