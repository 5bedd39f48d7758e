//! Several backends with the same base model as one: replicas that serve, score and train together.
//!
//! Each replica runs the steps of an engine thread of its own. Adapters are loaded into all of them. Sequences to score or
//! to differentiate are divided; the gradients of an update are summed over the replicas before its step, which every
//! replica then makes by itself, so that their weights stay the same.
//!
//! It names no device. What sums the gradients is a [`GradientReducer`].

mod parallel;
mod runner;
mod session;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use clawhost_model::{Model, TrainedWeights};

use crate::backend::{
    AdamWState, AdapterSlot, Backend, Device, DeviceMemory, ForwardError, GradientReducer,
    LogprobRounding, Runner, Sequence, SequenceScores, TrainLimits, TrainSession,
};
use parallel::run_each;
use runner::{ReplicaRunner, RunnerCounts};
use session::ReplicatedSession;

/// Where each replica has the weights of a slot.
type Slots = RwLock<HashMap<AdapterSlot, Vec<AdapterSlot>>>;

/// Replicas of one model.
#[derive(Debug)]
pub struct ReplicatedBackend {
    replicas: Vec<Arc<dyn Backend>>,
    reducer: Arc<dyn GradientReducer>,
    slots: Arc<Slots>,
    last_slot: AtomicU32,
    runners: Arc<RunnerCounts>,
}

impl ReplicatedBackend {
    /// Backends that have loaded the same base model, on devices of the same kind, and what sums gradients over their
    /// sessions, in this order.
    ///
    /// # Panics
    /// Without a backend.
    pub fn new(replicas: Vec<Arc<dyn Backend>>, reducer: impl GradientReducer) -> Self {
        assert!(!replicas.is_empty(), "there is at least one replica");
        Self {
            runners: Arc::new(RunnerCounts::new(replicas.len())),
            replicas,
            reducer: Arc::new(reducer),
            slots: Arc::default(),
            last_slot: AtomicU32::new(AdapterSlot::BASE.0),
        }
    }

    fn first(&self) -> &dyn Backend {
        &*self.replicas[0]
    }

    /// The slot of each replica.
    fn slots_of(&self, slot: AdapterSlot) -> Vec<AdapterSlot> {
        match slot {
            AdapterSlot::BASE => vec![slot; self.replicas.len()],
            _ => self.slots.read().unwrap_or_else(PoisonError::into_inner)[&slot].clone(),
        }
    }
}

impl Backend for ReplicatedBackend {
    fn name(&self) -> &'static str {
        self.first().name()
    }

    fn model(&self) -> &Arc<Model> {
        self.first().model()
    }

    /// The names of all devices, and their memory together.
    fn device(&self) -> Device {
        let devices: Vec<Device> = self.replicas.iter().map(|one| one.device()).collect();
        let mut names: Vec<(usize, &str)> = Vec::new();
        for device in &devices {
            match names.iter_mut().find(|(_, name)| *name == device.name) {
                Some((count, _)) => *count += 1,
                None => names.push((1, &device.name)),
            }
        }
        let names = names.into_iter().map(|(count, name)| match count {
            1 => name.to_owned(),
            _ => format!("{count} x {name}"),
        });
        let memory: Option<Vec<DeviceMemory>> = devices.iter().map(|one| one.memory).collect();
        Device {
            name: names.collect::<Vec<_>>().join(", "),
            memory: memory.map(|all| DeviceMemory {
                total: all.iter().map(|one| one.total).sum(),
                used: all.iter().map(|one| one.used).sum(),
            }),
        }
    }

    fn weight_bytes(&self) -> usize {
        self.first().weight_bytes()
    }

    fn block_bytes(&self) -> usize {
        self.first().block_bytes()
    }

    fn max_model_len(&self) -> usize {
        self.first().max_model_len()
    }

    fn logprob_rounding(&self) -> LogprobRounding {
        self.first().logprob_rounding()
    }

    fn training_share(&self) -> f64 {
        self.first().training_share()
    }

    fn replicas(&self) -> usize {
        self.replicas.len()
    }

    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>, ForwardError> {
        let place = self.runners.take();
        let inner = self.replicas[place.replica()].runner(blocks)?;
        let slots = Arc::clone(&self.slots);
        Ok(Box::new(ReplicaRunner::new(inner, place, slots)))
    }

    /// Loads the weights into every replica, or into none.
    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot, ForwardError> {
        let loaded = run_each(&self.replicas, |one| one.load_adapter(weights));
        let slots: Result<Vec<AdapterSlot>, ForwardError> = loaded.iter().cloned().collect();
        let slots = slots.inspect_err(|_| {
            for (replica, loaded) in self.replicas.iter().zip(&loaded) {
                if let Ok(slot) = loaded {
                    replica.drop_adapter(*slot);
                }
            }
        })?;
        let slot = AdapterSlot(self.last_slot.fetch_add(1, Ordering::Relaxed) + 1);
        let mut all = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(slot, slots);
        Ok(slot)
    }

    fn drop_adapter(&self, slot: AdapterSlot) {
        let mut all = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slots = all.remove(&slot);
        drop(all);
        let slots = slots.expect("weights are loaded in the slot");
        for (replica, slot) in self.replicas.iter().zip(slots) {
            replica.drop_adapter(slot);
        }
    }

    fn score(
        &self,
        slot: AdapterSlot,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        let slots = self.slots_of(slot);
        let shards = divide(sequences, self.replicas.len());
        let work: Vec<_> = self.replicas.iter().zip(slots).zip(shards).collect();
        concat(run_each(work, |((replica, slot), shard)| {
            replica.score(slot, &sequences[shard])
        }))
    }

    fn train(
        &self,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
        limits: TrainLimits,
    ) -> Result<Box<dyn TrainSession>, ForwardError> {
        let sessions = run_each(&self.replicas, |replica| {
            replica.train(weights, state.clone(), limits)
        });
        let sessions: Result<Vec<_>, ForwardError> = sessions.into_iter().collect();
        let reducer = Arc::clone(&self.reducer);
        Ok(Box::new(ReplicatedSession::new(sessions?, reducer)))
    }
}

/// Divides sequences, in order, into at most `parts` ranges, none of which is empty, such that the longest has as few tokens
/// as possible. Without sequences: one empty range.
fn divide(sequences: &[Sequence<'_>], parts: usize) -> Vec<Range<usize>> {
    let lengths: Vec<usize> = sequences.iter().map(|one| one.tokens.len()).collect();
    let split = |most: usize| {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut tokens = 0;
        for (at, length) in lengths.iter().enumerate() {
            match ranges.last_mut() {
                Some(range) if tokens + length <= most => range.end = at + 1,
                _ => {
                    ranges.push(at..at + 1);
                    tokens = 0;
                }
            }
            tokens += length;
        }
        ranges
    };
    let total: usize = lengths.iter().sum();
    let (mut low, mut high) = (total / parts, total);
    while low < high {
        let middle = usize::midpoint(low, high);
        if split(middle).len() <= parts {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let mut ranges = split(low);
    if ranges.is_empty() {
        ranges.push(0..0);
    }
    ranges
}

/// The scores of all shards in order, or the first error.
fn concat(
    shards: Vec<Result<Vec<SequenceScores>, ForwardError>>,
) -> Result<Vec<SequenceScores>, ForwardError> {
    let shards: Result<Vec<_>, ForwardError> = shards.into_iter().collect();
    Ok(shards?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Candidates;

    fn shares(lengths: &[usize], parts: usize) -> Vec<usize> {
        let tokens = vec![1; 100];
        let sequences: Vec<Sequence<'_>> = lengths
            .iter()
            .map(|length| Sequence {
                tokens: &tokens[..*length],
                start: 1,
                temperature: 1.0,
                candidates: Candidates::None,
            })
            .collect();
        let shards = divide(&sequences, parts);
        assert_eq!(shards.first().map(|one| one.start), Some(0));
        assert_eq!(shards.last().map(|one| one.end), Some(lengths.len()));
        assert!(
            shards
                .array_windows()
                .all(|[one, next]| one.end == next.start)
        );
        shards
            .into_iter()
            .map(|shard| lengths[shard].iter().sum())
            .collect()
    }

    #[test]
    fn sequences_are_divided_so_that_the_longest_part_is_short() {
        assert_eq!(shares(&[5, 5, 5, 5], 2), [10, 10]);
        assert_eq!(shares(&[9, 1, 1, 1], 2), [9, 3]);
        assert_eq!(shares(&[1, 1, 1, 9], 2), [3, 9]);
        assert_eq!(shares(&[3, 4, 9, 1, 2], 3), [7, 9, 3]);
        assert_eq!(shares(&[7], 4), [7]);
        assert_eq!(shares(&[7, 7], 4), [7, 7]);
        assert_eq!(shares(&[], 2), [0]);
        assert_eq!(shares(&[4, 4, 4], 1), [12]);
    }
}
