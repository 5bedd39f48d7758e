//! A backend whose steps a test observes or replaces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use clawhost_model::{Model, TrainedWeights};

use crate::backend::{
    AdamWState, AdapterSlot, Backend, Batch, Device, ForwardError, LogprobRounding, RequestId,
    RowOutput, Runner, SamplerSpec, Sequence, SequenceScores, TrainLimits, TrainSession,
};

type Step =
    Box<dyn FnMut(&mut dyn Runner, Batch<'_>) -> Result<Vec<RowOutput>, ForwardError> + Send>;

/// Another backend whose steps go through a function, for one engine.
pub struct WrappedBackend {
    inner: Arc<dyn Backend>,
    /// Taken by the runner.
    step: Mutex<Option<Step>>,
    out_of_memory: Arc<AtomicBool>,
}

impl std::fmt::Debug for WrappedBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WrappedBackend({:?})", self.inner)
    }
}

impl WrappedBackend {
    /// A backend that calls `step` with the inner runner in place of each step.
    pub fn new(
        inner: Arc<dyn Backend>,
        step: impl FnMut(&mut dyn Runner, Batch<'_>) -> Result<Vec<RowOutput>, ForwardError>
        + Send
        + 'static,
    ) -> Self {
        Self {
            inner,
            step: Mutex::new(Some(Box::new(step))),
            out_of_memory: Arc::default(),
        }
    }

    /// While it is set, the device has no memory for more weights.
    pub fn out_of_memory(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.out_of_memory)
    }

    fn check_memory(&self) -> Result<(), ForwardError> {
        if self.out_of_memory.load(Ordering::SeqCst) {
            return Err(ForwardError::Device(
                "the device is out of memory".to_owned(),
            ));
        }
        Ok(())
    }
}

impl Backend for WrappedBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn model(&self) -> &Arc<Model> {
        self.inner.model()
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn device(&self) -> Device {
        self.inner.device()
    }

    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }

    fn logprob_rounding(&self) -> LogprobRounding {
        self.inner.logprob_rounding()
    }

    fn max_model_len(&self) -> usize {
        self.inner.max_model_len()
    }

    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>, ForwardError> {
        let step = self.step.lock().unwrap().take();
        Ok(Box::new(WrappedRunner {
            inner: self.inner.runner(blocks)?,
            step: step.expect("it serves one engine"),
        }))
    }

    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot, ForwardError> {
        self.check_memory()?;
        self.inner.load_adapter(weights)
    }

    fn drop_adapter(&self, slot: AdapterSlot) {
        self.inner.drop_adapter(slot);
    }

    fn score(
        &self,
        slot: AdapterSlot,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        self.inner.score(slot, sequences)
    }

    fn train(
        &self,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
        limits: TrainLimits,
    ) -> Result<Box<dyn TrainSession>, ForwardError> {
        self.check_memory()?;
        self.inner.train(weights, state, limits)
    }
}

struct WrappedRunner {
    inner: Box<dyn Runner>,
    step: Step,
}

impl Runner for WrappedRunner {
    fn add_request(&mut self, request: RequestId, sampler: SamplerSpec) {
        self.inner.add_request(request, sampler);
    }

    fn remove_request(&mut self, request: RequestId) {
        self.inner.remove_request(request);
    }

    fn step(&mut self, batch: Batch<'_>) -> Result<Vec<RowOutput>, ForwardError> {
        (self.step)(&mut *self.inner, batch)
    }
}
