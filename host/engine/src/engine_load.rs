//! Whether the engine has requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Whether the engine has requests; shared by the engine threads and background work.
#[derive(Debug, Default)]
pub(crate) struct EngineLoad {
    state: Mutex<LoadState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct LoadState {
    /// The replicas that have running requests, as bits.
    busy: u64,
    waiting: usize,
}

impl LoadState {
    pub(crate) fn is_busy(&self) -> bool {
        self.busy != 0
    }
}

impl EngineLoad {
    /// Sets whether a replica has running requests. Called by its engine thread.
    pub(crate) fn set_busy(&self, replica: usize, busy: bool) {
        let mut state = self.lock();
        let was_busy = state.is_busy();
        match busy {
            true => state.busy |= 1 << replica,
            false => state.busy &= !(1 << replica),
        }
        if was_busy && !state.is_busy() {
            self.changed.notify_all();
        }
    }

    /// Sets the flag `unthrottled` of [`EngineLoad::wait_until_idle`] and wakes the threads that wait.
    pub(crate) fn stop_waiting(&self, unthrottled: &AtomicBool) {
        // Under the lock, so that no thread checks the flag before this and starts to wait after it.
        let state = self.lock();
        unthrottled.store(true, Ordering::SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    /// Number of threads that wait for requests to finish.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Waits until there is no request, `unthrottled` is set, or `timeout` has passed.
    pub(crate) fn wait_until_idle(&self, timeout: Duration, unthrottled: &AtomicBool) {
        let mut state = self.lock();
        state.waiting += 1;
        let result = self.changed.wait_timeout_while(state, timeout, |state| {
            state.is_busy() && !unthrottled.load(Ordering::SeqCst)
        });
        let (mut state, _) = result.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
