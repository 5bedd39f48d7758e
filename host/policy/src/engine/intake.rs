//! Where requests wait: a bounded queue for each priority, and the bell that wakes the engine.

use std::collections::{HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::options::Priority;
use super::request::Refused;
use super::sequence::{Sequence, User};

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
    /// Somebody rang though there is no request.
    rung: bool,
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

    /// The next request that may start. `admits` says whether one more of a priority and user may, and what to
    /// compare by among equals, the least first; one user's own are taken in the order of arrival.
    pub(super) fn next<K: Ord>(
        &mut self,
        admits: impl Fn(Priority, &User) -> Option<K>,
    ) -> Option<Sequence> {
        self.queues.iter_mut().find_map(|queue| {
            let mut seen = HashSet::new();
            let firsts = queue.iter().enumerate();
            let firsts = firsts.filter(|(_, sequence)| seen.insert(&sequence.user));
            let admitted = firsts.filter_map(|(index, sequence)| {
                let key = admits(sequence.priority, &sequence.user)?;
                Some((key, index))
            });
            let (_, index) = admitted.min()?;
            queue.remove(index)
        })
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

    /// Wakes the engine's thread for something else than a request.
    pub(super) fn ring(&self) {
        self.lock().rung = true;
        self.bell.notify_one();
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
        let mut state = self
            .bell
            .wait_while(state, |state| {
                idle && state.waiting() == 0 && state.closing.is_none() && !state.rung
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.rung = false;
        state
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
