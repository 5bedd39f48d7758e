//! The engine thread of a replica: admits waiting requests, runs steps, sleeps while idle, and stops at shutdown.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::scheduler::{Scheduler, panic_message};
use super::stats::EngineStats;
use super::waiting_queue::WaitingQueue;
use crate::engine_load::EngineLoad;

/// State of the engine thread of a replica: what it owns, and what it shares with the handles.
pub(super) struct EngineCore {
    pub(super) replica: usize,
    pub(super) scheduler: Scheduler,
    pub(super) waiting_queue: Arc<WaitingQueue>,
    pub(super) stats: Arc<Mutex<EngineStats>>,
    pub(super) load: Arc<EngineLoad>,
    pub(super) running: RunningThread,
}

/// An engine thread, counted while this lives.
pub(super) struct RunningThread(Arc<watch::Sender<usize>>);

impl RunningThread {
    pub(super) fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl EngineCore {
    /// Runs until shutdown.
    pub(super) fn run(mut self) {
        while self.admit_waiting() {
            self.load.set_busy(self.replica, !self.scheduler.is_idle());
            let step = catch_unwind(AssertUnwindSafe(|| self.scheduler.step()));
            if let Err(panic) = step {
                let reason = format!("the engine panicked: {}", panic_message(panic.as_ref()));
                tracing::error!(reason, "a step of the engine failed");
                self.scheduler.fail_all(&reason);
            }
            self.publish_stats();
        }
        self.publish_stats();
        self.load.set_busy(self.replica, false);
        drop(self.running);
    }

    /// Waits for work and admits it. Returns false when the thread is to stop.
    fn admit_waiting(&mut self) -> bool {
        let mut state = self.waiting_queue.wait(self.scheduler.is_idle());
        self.scheduler.stats.cancelled += state.drop_cancelled();
        if let Some(deadline) = state.shutdown_deadline() {
            let expired = Instant::now() >= deadline;
            if expired || self.scheduler.is_idle() && state.waiting() == 0 {
                let waiting = state.drain();
                drop(state);
                waiting
                    .into_iter()
                    .for_each(|sequence| self.scheduler.admit(sequence));
                self.scheduler
                    .fail_all("the engine was shut down before the reply was complete");
                return false;
            }
        }
        while let Some(sequence) =
            state.pop_next(|priority, user| self.scheduler.admission_key(priority, user))
        {
            self.scheduler.admit(sequence);
        }
        true
    }

    fn publish_stats(&mut self) {
        self.scheduler.update_gauges();
        let mut shared = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(&self.scheduler.stats);
        drop(shared);
        self.load.set_busy(self.replica, !self.scheduler.is_idle());
        self.scheduler.send_events();
    }
}
