//! Where requests wait: a bounded queue for each priority, and the bell that wakes the engine.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::options::Priority;
use super::request::Refused;
use super::sequence::Sequence;

/// Requests that wait, shared by the callers and the engine's thread.
#[derive(Debug, Default)]
pub(super) struct Intake {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    queues: [VecDeque<Sequence>; 3],
    arrivals: u64,
    /// When running requests are cut; set once shutdown has begun.
    closing: Option<Instant>,
}

impl State {
    /// Takes out requests whose readers went away and counts them.
    pub(super) fn drop_cancelled(&mut self) -> u64 {
        let before = self.waiting();
        for queue in &mut self.queues {
            queue.retain(|sequence| !sequence.is_cancelled());
        }
        (before - self.waiting()) as u64
    }

    /// The next request, if `admits` says that its priority may start now.
    pub(super) fn next(&mut self, admits: impl Fn(Priority) -> bool) -> Option<Sequence> {
        let queues = self.queues.iter_mut().zip(Priority::ALL);
        let (queue, priority) = queues.into_iter().find(|(queue, _)| !queue.is_empty())?;
        if admits(priority) {
            queue.pop_front()
        } else {
            None
        }
    }

    /// Takes out everything.
    pub(super) fn drain(&mut self) -> Vec<Sequence> {
        self.queues.iter_mut().flat_map(std::mem::take).collect()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(super) fn closing(&self) -> Option<Instant> {
        self.closing
    }
}

impl Intake {
    /// Puts a request at the end of its queue.
    pub(super) fn push(&self, mut sequence: Sequence, limit: usize) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closing.is_some() {
            return Err(Refused::ShuttingDown);
        }
        let order = state.arrivals;
        if let Some(queue) = state.queues.get_mut(sequence.priority as usize) {
            if queue.len() >= limit {
                return Err(Refused::Busy {
                    waiting: queue.len(),
                    limit,
                });
            }
            sequence.order = order;
            queue.push_back(sequence);
        }
        state.arrivals += 1;
        drop(state);
        self.bell.notify_one();
        Ok(())
    }

    /// Refuses requests from now on; those taken on may run for `grace` longer.
    pub(super) fn close(&self, grace: Duration) {
        self.lock()
            .closing
            .get_or_insert_with(|| Instant::now() + grace);
        self.bell.notify_one();
    }

    /// Waits until there is something to do: always when `idle` is false.
    pub(super) fn wait(&self, idle: bool) -> MutexGuard<'_, State> {
        let state = self.lock();
        self.bell
            .wait_while(state, |state| {
                idle && state.waiting() == 0 && state.closing.is_none()
            })
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
