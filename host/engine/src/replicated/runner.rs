//! The runner of one replica.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Slots;
use crate::backend::{
    AdapterSlot, Batch, ForwardError, RequestId, Row, RowOutput, Runner, SamplerSpec,
};

/// The number of runners on each replica.
#[derive(Debug)]
pub(super) struct RunnerCounts(Mutex<Vec<usize>>);

impl RunnerCounts {
    pub(super) fn new(replicas: usize) -> Self {
        Self(Mutex::new(vec![0; replicas]))
    }

    /// Counts one more runner on the replica that has the fewest.
    pub(super) fn take(self: &Arc<Self>) -> RunnerPlace {
        let mut counts = self.lock();
        let fewest = counts.iter().enumerate().min_by_key(|(_, count)| **count);
        let (replica, _) = fewest.expect("there is at least one replica");
        counts[replica] += 1;
        drop(counts);
        RunnerPlace {
            counts: Arc::clone(self),
            replica,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The replica of a runner, counted until this is dropped.
#[derive(Debug)]
pub(super) struct RunnerPlace {
    counts: Arc<RunnerCounts>,
    replica: usize,
}

impl RunnerPlace {
    pub(super) fn replica(&self) -> usize {
        self.replica
    }
}

impl Drop for RunnerPlace {
    fn drop(&mut self) {
        self.counts.lock()[self.replica] -= 1;
    }
}

/// A runner whose rows name the slots of all replicas.
pub(super) struct ReplicaRunner {
    inner: Box<dyn Runner>,
    place: RunnerPlace,
    slots: Arc<Slots>,
}

impl ReplicaRunner {
    pub(super) fn new(inner: Box<dyn Runner>, place: RunnerPlace, slots: Arc<Slots>) -> Self {
        Self {
            inner,
            place,
            slots,
        }
    }
}

impl Runner for ReplicaRunner {
    fn add_request(&mut self, request: RequestId, sampler: SamplerSpec) {
        self.inner.add_request(request, sampler);
    }

    fn remove_request(&mut self, request: RequestId) {
        self.inner.remove_request(request);
    }

    fn step(&mut self, batch: Batch<'_>) -> Result<Vec<RowOutput>, ForwardError> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let rows = batch.rows.iter().map(|row| Row {
            slot: match row.slot {
                AdapterSlot::BASE => row.slot,
                slot => slots[&slot][self.place.replica],
            },
            ..row.clone()
        });
        let rows: Vec<Row<'_>> = rows.collect();
        drop(slots);
        self.inner.step(Batch {
            rows: &rows,
            ..batch
        })
    }
}
