//! How many compilers run at a time, and that no two compile the same thing.
//!
//! A component that is expensive to compile keeps its turn for minutes. Others go on beside it.

use std::sync::{Condvar, Mutex, PoisonError};

use super::key::Key;

/// Compilers that run at a time. Each may use up all of its limits.
const COMPILERS: usize = 4;

/// What is being compiled now.
#[derive(Default)]
pub(super) struct Turns {
    busy: Mutex<Vec<Key>>,
    freed: Condvar,
}

/// The right to compile one thing. Ends when it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    key: Key,
}

impl Turns {
    /// Waits until nobody compiles this and a compiler is free.
    pub(super) fn take(&self, key: &Key) -> Turn<'_> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let occupied = |busy: &mut Vec<Key>| busy.len() >= COMPILERS || busy.contains(key);
        let mut busy = self
            .freed
            .wait_while(busy, occupied)
            .unwrap_or_else(PoisonError::into_inner);
        busy.push(key.clone());
        Turn {
            turns: self,
            key: key.clone(),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut busy = self
            .turns
            .busy
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        busy.retain(|key| *key != self.key);
        self.turns.freed.notify_all();
    }
}
