//! Limits the number of concurrent compilations and prevents compiling the same component twice at once.
//!
//! A component that is expensive to compile may hold its slot for minutes; others use the remaining slots.

use std::sync::{Condvar, Mutex, PoisonError};

use super::key::CacheKey;
use crate::lock::lock;

/// Maximum concurrent compilations. Each may use all of its limits.
const MAX_CONCURRENT: usize = 4;

/// The compilations in progress.
#[derive(Default)]
pub(super) struct CompileSlots {
    busy: Mutex<Vec<CacheKey>>,
    released: Condvar,
}

/// A slot for compiling one component, released on drop.
pub(super) struct CompileSlot<'a> {
    slots: &'a CompileSlots,
    key: CacheKey,
}

impl CompileSlots {
    /// Waits until no other thread compiles this component and a slot is free.
    pub(super) fn acquire(&self, key: &CacheKey) -> CompileSlot<'_> {
        let busy = lock(&self.busy);
        let occupied =
            |busy: &mut Vec<CacheKey>| busy.len() >= MAX_CONCURRENT || busy.contains(key);
        let mut busy = self
            .released
            .wait_while(busy, occupied)
            .unwrap_or_else(PoisonError::into_inner);
        busy.push(key.clone());
        CompileSlot {
            slots: self,
            key: key.clone(),
        }
    }
}

impl Drop for CompileSlot<'_> {
    fn drop(&mut self) {
        let mut busy = lock(&self.slots.busy);
        busy.retain(|key| *key != self.key);
        self.slots.released.notify_all();
    }
}
