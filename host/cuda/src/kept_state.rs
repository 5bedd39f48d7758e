//! The state that a training session leaves on the device, for the session that continues it and for loading its adapter:
//! both would otherwise upload what is there already.
//!
//! A state is kept for the very weights and moments that the session returned, not for equal ones: it is the content of
//! these allocations, which nobody changes while a weak reference to them exists (`Arc::make_mut` moves them away).

use std::sync::{Arc, Weak};

use clawhost_engine::backend::AdamWState;
use clawhost_model::{Adapter, TrainedWeights};

use crate::adapters::DeviceAdapter;
use crate::train_state::{Compute, TrainState};

/// The allocation of a value in host memory.
#[derive(Debug)]
pub(crate) struct Identity<T>(Weak<T>);

impl<T> Identity<T> {
    pub(crate) fn of(value: &Arc<T>) -> Self {
        Self(Arc::downgrade(value))
    }

    pub(crate) fn is(&self, value: &Arc<T>) -> bool {
        Weak::as_ptr(&self.0) == Arc::as_ptr(value)
    }
}

/// A state with the weights and moments in host memory that are the same.
#[derive(Debug)]
pub(crate) struct KeptState {
    adapter: Identity<Adapter>,
    moments: [Identity<Vec<Vec<f32>>>; 2],
    updates: u64,
    state: TrainState,
}

impl KeptState {
    /// `None` if the host does not know the state, and for a full copy of the model, which would take the memory of another
    /// one.
    pub(crate) fn new(mut state: TrainState) -> Option<Self> {
        let (weights, optimizer) = state.host.take()?;
        Some(Self {
            adapter: Identity::of(weights.adapter()?),
            moments: [&optimizer.exp_avg, &optimizer.exp_avg_sq].map(Identity::of),
            updates: optimizer.updates,
            state,
        })
    }

    /// The state, if it is that of these weights and moments.
    pub(crate) fn into_state(
        self,
        weights: &TrainedWeights,
        optimizer: &AdamWState,
    ) -> Option<TrainState> {
        let [first, second] = &self.moments;
        let is_same = weights.adapter().is_some_and(|own| self.adapter.is(own))
            && first.is(&optimizer.exp_avg)
            && second.is(&optimizer.exp_avg_sq)
            && self.updates == optimizer.updates;
        is_same.then_some(self.state)
    }

    /// The trained adapter in the precision of the products, if it is this one.
    pub(crate) fn adapter(&self, adapter: &Arc<Adapter>) -> Option<&DeviceAdapter> {
        match &self.state.compute {
            Compute::Lora(own) if self.adapter.is(adapter) => Some(own),
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use clawhost_engine::ReplicatedBackend;
    use clawhost_engine::backend::{
        AdamW, Backend, Candidates, HostReducer, LossGradients, OptimizerStep, Sequence,
        SequenceScores, TrainLimits, TrainSession,
    };
    use clawhost_model::Model;
    use clawhost_model::testing::{random_adapter, tiny};

    use super::*;
    use crate::device::emulated::EmulatedDriver;
    use crate::device::{Driver, lock};
    use crate::shared::Loaded;
    use crate::{CudaBackend, Precision};

    fn backend(precision: Precision) -> CudaBackend {
        let driver: Arc<dyn Driver> =
            EmulatedDriver::new().expect("these tests need a C++ compiler");
        CudaBackend::on(driver, Arc::new(Model::random(tiny(), 3)), precision).unwrap()
    }

    fn start() -> (TrainedWeights, AdamWState) {
        let weights = TrainedWeights::from(Arc::new(random_adapter(&tiny(), 4)));
        let moments = AdamWState::for_weights(&weights);
        (weights, moments)
    }

    fn train(
        backend: &CudaBackend,
        (weights, moments): &(TrainedWeights, AdamWState),
    ) -> Box<dyn TrainSession> {
        let limits = TrainLimits::default();
        backend
            .train(weights, Some(moments.clone()), limits)
            .unwrap()
    }

    const TOKENS: [u32; 9] = [3, 14, 15, 9, 2, 6, 5, 35, 8];

    fn sequence() -> Sequence<'static> {
        Sequence {
            tokens: &TOKENS,
            start: 2,
            temperature: 1.0,
            candidates: Candidates::None,
        }
    }

    fn accumulate(session: &mut dyn TrainSession) {
        let scores = session.forward(&[sequence()]).unwrap();
        let gradients = LossGradients {
            d_logprob: vec![-1.0; scores[0].logprobs.len()],
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
        };
        session.backward(&[gradients]).unwrap();
    }

    fn update(session: &mut dyn TrainSession) {
        accumulate(session);
        let step = OptimizerStep {
            adamw: AdamW::default(),
            learning_rate: 1e-2,
            gradient_scale: 1.0,
        };
        session.step(step).unwrap();
    }

    fn is_kept(backend: &CudaBackend) -> bool {
        lock(&backend.shared.kept).is_some()
    }

    fn assert_equal(one: &(TrainedWeights, AdamWState), two: &(TrainedWeights, AdamWState)) {
        assert_eq!(one.0.digest(), two.0.digest());
        assert!(one.1 == two.1, "the moments differ");
    }

    /// Equal values in other allocations.
    fn copied((weights, moments): &(TrainedWeights, AdamWState)) -> (TrainedWeights, AdamWState) {
        let tensors = weights.tensors();
        let tensors = tensors.iter().map(|(_, values)| values.to_vec());
        let moments = AdamWState {
            updates: moments.updates,
            exp_avg: Arc::new(moments.exp_avg.to_vec()),
            exp_avg_sq: Arc::new(moments.exp_avg_sq.to_vec()),
        };
        (weights.with_tensors(tensors.collect()), moments)
    }

    /// The result of one update on a backend that has run nothing before.
    fn fresh(
        precision: Precision,
        from: &(TrainedWeights, AdamWState),
    ) -> (TrainedWeights, AdamWState) {
        let mut session = train(&backend(precision), &copied(from));
        update(&mut *session);
        session.finish().unwrap()
    }

    #[test]
    fn a_session_that_continues_gives_the_result_of_a_fresh_one() {
        for precision in [Precision::F32, Precision::Bf16] {
            let backend = backend(precision);
            let mut at = start();
            for _ in 0..3 {
                let expected = fresh(precision, &at);
                let mut session = train(&backend, &at);
                assert!(!is_kept(&backend), "the session has it");
                update(&mut *session);
                at = session.finish().unwrap();
                assert!(is_kept(&backend));
                assert_equal(&at, &expected);
            }
        }
    }

    #[test]
    fn every_replica_keeps_the_state_of_a_session_on_several() {
        let precision = Precision::Bf16;
        let gpus = [backend(precision), backend(precision)];
        let replicas = gpus.clone().map(|gpu| Arc::new(gpu) as Arc<dyn Backend>);
        let replicated = ReplicatedBackend::new(replicas.into(), HostReducer);
        let mut at = start();
        for _ in 0..3 {
            // One sequence, so that the other replica adds zeros.
            let expected = fresh(precision, &at);
            let limits = TrainLimits::default();
            let session = replicated.train(&at.0, Some(at.1.clone()), limits);
            let mut session = session.unwrap();
            assert!(gpus.iter().all(|gpu| !is_kept(gpu)), "the session has them");
            update(&mut *session);
            at = session.finish().unwrap();
            assert!(gpus.iter().all(is_kept));
            assert_equal(&at, &expected);
        }
        let slot = replicated.load_adapter(&at.0).unwrap();
        let scores = replicated.score(slot, &[sequence(), sequence()]).unwrap();
        assert_eq!(scores[0], scores[1]);
    }

    #[test]
    fn other_weights_and_moments_start_a_fresh_session() {
        let precision = Precision::F32;
        let backend = backend(precision);
        let first = start();
        let mut session = train(&backend, &first);
        update(&mut *session);
        let second = session.finish().unwrap();
        let mut changed = second.clone();
        changed.0.tensors_mut()[0].1[0] += 1.0;
        let moments = |moments: AdamWState| (second.0.clone(), moments);
        let cases = [
            first.clone(),
            copied(&second),
            changed,
            moments(first.1.clone()),
            moments(AdamWState {
                updates: 7,
                ..second.1.clone()
            }),
            moments(AdamWState {
                exp_avg: Arc::clone(&second.1.exp_avg_sq),
                ..second.1.clone()
            }),
        ];
        for case in cases {
            // What the backend keeps is that of `second`.
            let mut session = train(&backend, &first);
            update(&mut *session);
            let kept = session.finish().unwrap();
            assert_equal(&kept, &second);
            let mut session = train(&backend, &case);
            assert_equal(
                &(
                    session.weights().unwrap(),
                    session.optimizer_state().unwrap(),
                ),
                &case,
            );
            update(&mut *session);
            assert_equal(&session.finish().unwrap(), &fresh(precision, &case));
        }
    }

    #[test]
    fn only_an_unchanged_state_is_kept_by_a_session_that_does_not_finish() {
        let precision = Precision::Bf16;
        let backend = backend(precision);
        let mut session = train(&backend, &start());
        update(&mut *session);
        let at = session.finish().unwrap();
        let mut session = train(&backend, &at);
        accumulate(&mut *session);
        drop(session);
        assert!(is_kept(&backend));
        let mut session = train(&backend, &at);
        update(&mut *session);
        drop(session);
        assert!(!is_kept(&backend));
        // Without an update, a session returns what it got.
        let (weights, moments) = train(&backend, &at).finish().unwrap();
        assert!(Arc::ptr_eq(
            weights.adapter().unwrap(),
            at.0.adapter().unwrap()
        ));
        assert!(Arc::ptr_eq(&moments.exp_avg, &at.1.exp_avg));
        let mut session = train(&backend, &at);
        update(&mut *session);
        assert_equal(&session.finish().unwrap(), &fresh(precision, &at));
    }

    #[test]
    fn a_trained_adapter_is_loaded_from_the_device() {
        for precision in [Precision::F32, Precision::Bf16] {
            let backend = backend(precision);
            let mut session = train(&backend, &start());
            update(&mut *session);
            let at = session.finish().unwrap();
            let weights = [at.0.clone(), at.0.clone(), copied(&at).0, start().0];
            let slots = weights.map(|weights| backend.load_adapter(&weights).unwrap());
            let scores = slots.map(|slot| backend.score(slot, &[sequence()]).unwrap());
            assert_eq!(scores[0], scores[1]);
            assert_eq!(scores[0], scores[2]);
            assert_ne!(scores[0], scores[3]);
            let loaded = slots.map(|slot| match backend.shared.loaded(slot) {
                Some(Loaded::Adapter(adapter)) => adapter,
                _ => unreachable!("an adapter is loaded"),
            });
            assert!(Arc::ptr_eq(&loaded[0], &loaded[1]));
            assert!(!Arc::ptr_eq(&loaded[0], &loaded[2]));
            // The next update does not change what is loaded.
            let mut session = train(&backend, &at);
            update(&mut *session);
            let before: &[SequenceScores] = &scores[0];
            assert_eq!(backend.score(slots[0], &[sequence()]).unwrap(), before);
            assert_ne!(session.score(&[sequence()]).unwrap(), before);
        }
    }

    #[test]
    fn what_is_kept_gives_way_to_what_needs_memory() {
        let backend = backend(Precision::F32);
        let mut session = train(&backend, &start());
        update(&mut *session);
        let at = session.finish().unwrap();
        assert!(is_kept(&backend));
        let error = backend.runner(1 << 30).err().unwrap();
        assert!(error.to_string().contains("memory"), "{error}");
        assert!(!is_kept(&backend));
        assert_equal(&train(&backend, &at).finish().unwrap(), &at);
    }
}
