//! The engine's thread: takes requests on, steps, sleeps when there is nothing to do, and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::batcher::{Batcher, message};
use super::intake::Intake;
use super::stats::EngineStats;
use crate::background::Load;

/// What the thread owns and what it shares with the handles.
pub(super) struct Worker {
    pub(super) batcher: Batcher,
    pub(super) intake: Arc<Intake>,
    pub(super) stats: Arc<Mutex<EngineStats>>,
    pub(super) load: Arc<Load>,
    pub(super) stopped: watch::Sender<bool>,
}

impl Worker {
    /// Runs until shutdown.
    pub(super) fn run(mut self) {
        while self.turn() {
            self.load.set(!self.batcher.is_idle());
            let step = catch_unwind(AssertUnwindSafe(|| self.batcher.step()));
            if let Err(panic) = step {
                let reason = format!("the engine panicked: {}", message(panic.as_ref()));
                tracing::error!(reason, "a step of the engine failed");
                self.batcher.fail_all(&reason);
            }
            self.publish();
        }
        self.publish();
        self.load.set(false);
        self.stopped.send_replace(true);
    }

    /// Waits for work and takes it on; false when the thread is to end.
    fn turn(&mut self) -> bool {
        let mut state = self.intake.wait(self.batcher.is_idle());
        self.batcher.stats.cancelled += state.drop_cancelled();
        if let Some(deadline) = state.closing() {
            let cut = Instant::now() >= deadline;
            if cut || self.batcher.is_idle() && state.waiting() == 0 {
                let waiting = state.drain();
                drop(state);
                waiting
                    .into_iter()
                    .for_each(|sequence| self.batcher.admit(sequence));
                self.batcher
                    .fail_all("the engine was shut down before the reply was complete");
                return false;
            }
        }
        while let Some(sequence) = state.next(|priority, user| self.batcher.admits(priority, user))
        {
            self.batcher.admit(sequence);
        }
        true
    }

    fn publish(&mut self) {
        self.batcher.measure();
        let mut shared = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(&self.batcher.stats);
        drop(shared);
        self.load.set(!self.batcher.is_idle());
        self.batcher.deliver();
    }
}
