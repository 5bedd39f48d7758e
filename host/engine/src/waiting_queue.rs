//! The waiting queue: one bounded queue per priority, and the condition variable that wakes the engine thread.

use std::collections::{HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::options::Priority;
use super::request::SubmitError;
use super::sequence::{Sequence, User};

/// Waiting requests, shared by the callers and the engine thread.
#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    state: Mutex<QueueState>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct QueueState {
    queues: [VecDeque<Sequence>; 3],
    arrivals: u64,
    /// When unfinished requests are aborted; set once shutdown has begun.
    shutdown_deadline: Option<Instant>,
    /// The engine thread is to wake although no request waits.
    woken: bool,
}

impl QueueState {
    /// Removes requests whose reader dropped the generation, and returns how many.
    pub(super) fn drop_cancelled(&mut self) -> u64 {
        let before = self.waiting();
        for queue in &mut self.queues {
            queue.retain(|sequence| !sequence.is_cancelled());
        }
        (before - self.waiting()) as u64
    }

    /// Removes and returns the next request that may start. `admission_key` returns `None` if no further request of
    /// that priority and user may start, else the sort key among requests of one priority, smallest first. Requests of
    /// one user start in order of arrival.
    pub(super) fn pop_next<K: Ord>(
        &mut self,
        admission_key: impl Fn(Priority, &User) -> Option<K>,
    ) -> Option<Sequence> {
        self.queues.iter_mut().find_map(|queue| {
            let mut seen = HashSet::new();
            let oldest_per_user = queue.iter().enumerate();
            let oldest_per_user =
                oldest_per_user.filter(|(_, sequence)| seen.insert(&sequence.user));
            let admitted = oldest_per_user.filter_map(|(index, sequence)| {
                let key = admission_key(sequence.priority, &sequence.user)?;
                Some((key, index))
            });
            let (_, index) = admitted.min()?;
            queue.remove(index)
        })
    }

    /// Removes and returns all requests.
    pub(super) fn drain(&mut self) -> Vec<Sequence> {
        self.queues.iter_mut().flat_map(std::mem::take).collect()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(super) fn waiting_with(&self, priority: Priority) -> usize {
        self.queues[priority as usize].len()
    }

    pub(super) fn shutdown_deadline(&self) -> Option<Instant> {
        self.shutdown_deadline
    }
}

impl WaitingQueue {
    /// Appends requests to the queues of their priorities, all or none: the engine thread sees them at once. `waiting_in_others` are
    /// the requests of each priority that wait in the queues of other replicas; the limit is that of all. More than `limit` of one
    /// priority wait only if no other of it waits.
    pub(super) fn push(
        &self,
        sequences: Vec<Sequence>,
        limit: usize,
        waiting_in_others: [usize; Priority::ALL.len()],
    ) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if state.shutdown_deadline.is_some() {
            return Err(SubmitError::ShuttingDown);
        }
        for priority in Priority::ALL {
            let new = sequences.iter().filter(|one| one.priority == priority);
            let new = new.count();
            if new == 0 {
                continue;
            }
            let waiting =
                state.queues[priority as usize].len() + waiting_in_others[priority as usize];
            if waiting + new > limit.max(new) {
                return Err(SubmitError::Busy { waiting, limit });
            }
        }
        for mut sequence in sequences {
            sequence.arrival = state.arrivals;
            state.arrivals += 1;
            state.queues[sequence.priority as usize].push_back(sequence);
        }
        drop(state);
        self.wakeup.notify_one();
        Ok(())
    }

    /// Wakes the engine thread although no request arrived.
    pub(super) fn wake(&self) {
        self.lock().woken = true;
        self.wakeup.notify_one();
    }

    /// Rejects new requests from now on; requests already accepted may run for `grace` longer.
    pub(super) fn begin_shutdown(&self, grace: Duration) {
        self.lock()
            .shutdown_deadline
            .get_or_insert_with(|| Instant::now() + grace);
        self.wakeup.notify_one();
    }

    /// Blocks until there is work. Returns at once when `idle` is false.
    pub(super) fn wait(&self, idle: bool) -> MutexGuard<'_, QueueState> {
        let state = self.lock();
        let mut state = self
            .wakeup
            .wait_while(state, |state| {
                idle && state.waiting() == 0 && state.shutdown_deadline.is_none() && !state.woken
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
        state
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
