//! A training session: passes over micro-batches, and AdamW.

use std::sync::Arc;

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{
    AdamWState, LossGradients, OptimizerStep, Sequence, SequenceScores, TrainSession,
};
use clawhost_model::TrainedWeights;

use crate::backward::{Backward, Trained};
use crate::device::{Address, Buffer, Precision, Result, Stream, lock};
use crate::head::Partials;
use crate::kept_state::KeptState;
use crate::kernels::AdamWArguments;
use crate::lease::Lease;
use crate::packing::pack;
use crate::scoring::{MicroBatch, Scorer};
use crate::shared::Shared;
use crate::train_state::TrainState;

/// Trainable weights on the device.
#[derive(Debug)]
pub(crate) struct CudaTrainSession {
    shared: Arc<Shared>,
    scorer: Lease<Shared, Scorer>,
    state: Lease<Shared, TrainState>,
    /// The weights that the session started from: shape and kind.
    initial: TrainedWeights,
    updates: u64,
    /// The micro-batches that wait for the backward pass.
    forward: Option<Vec<(MicroBatch, Vec<SequenceScores>)>>,
}

impl CudaTrainSession {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        weights: &TrainedWeights,
        moments: Option<&AdamWState>,
    ) -> Result<Self> {
        let scorer = shared.lease_scorer(true)?;
        let stream = &scorer.stream;
        let kept = moments.and_then(|moments| {
            let kept = lock(&shared.kept).take()?;
            kept.into_state(weights, moments)
        });
        let mut state = match kept {
            Some(state) => state,
            None => TrainState::new(&shared.base, stream, weights, moments)?,
        };
        state.host = moments.map(|moments| (weights.clone(), moments.clone()));
        stream.clear_buffer(&state.gradients)?;
        stream.synchronize()?;
        let state = Lease::new(shared, state, |shared, state| {
            if let Some(kept) = KeptState::new(state) {
                *lock(&shared.kept) = Some(kept);
            }
        });
        Ok(Self {
            shared: Arc::clone(shared),
            scorer,
            state,
            initial: weights.clone(),
            updates: moments.map_or(0, |moments| moments.updates),
            forward: None,
        })
    }

    /// The gradients, and the stream that computes them.
    pub(crate) fn device_gradients(&self) -> (&Stream, &Buffer<f32>) {
        (&self.scorer.stream, &self.state.gradients)
    }

    /// The named tensors of a flat buffer.
    fn read(&self, buffer: &Buffer<f32>) -> Result<Vec<Vec<f32>>> {
        self.state
            .read(&self.shared.base, &self.scorer.stream, buffer)
    }
}

impl Drop for CudaTrainSession {
    fn drop(&mut self) {
        // Nothing uses the state any more when another session gets it.
        if self.scorer.stream.synchronize().is_err() {
            self.state.host = None;
        }
    }
}

/// The partial derivatives of a micro-batch, flattened.
///
/// # Errors
/// A vector of the wrong length.
fn flatten(scores: &[SequenceScores], gradients: &[LossGradients]) -> Result<Partials> {
    let check = |what, found, expected| {
        if found == expected {
            return Ok(());
        }
        Err(ForwardError::Length {
            what,
            found,
            expected,
        })
    };
    let mut partials = Partials::default();
    let mut has_candidates = false;
    for (own, scored) in gradients.iter().zip(scores) {
        let tokens = scored.logprobs.len();
        check("d_logprob", own.d_logprob.len(), tokens)?;
        partials.logprobs.extend_from_slice(&own.d_logprob);
        if own.d_entropy.is_empty() {
            partials.entropies.resize(partials.logprobs.len(), 0.0);
        } else {
            check("d_entropy", own.d_entropy.len(), tokens)?;
            partials.entropies.extend_from_slice(&own.d_entropy);
        }
        let candidates = scored.candidates.len();
        if own.d_candidates.is_empty() {
            let len = partials.candidates.len() + candidates;
            partials.candidates.resize(len, 0.0);
        } else {
            check("d_candidates", own.d_candidates.len(), candidates)?;
            partials.candidates.extend_from_slice(&own.d_candidates);
            has_candidates = true;
        }
    }
    if !has_candidates {
        partials.candidates.clear();
    }
    Ok(partials)
}

impl TrainSession for CudaTrainSession {
    fn zero_gradients(&mut self) -> Result<()> {
        self.scorer.stream.clear_buffer(&self.state.gradients)
    }

    fn forward(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>> {
        self.forward = None;
        let (model, adapter) = self.state.compute.weights(&self.shared.base.device_model);
        let mut batches = Vec::new();
        for packed in pack(&model.config, sequences)? {
            batches.push(self.scorer.forward_train(model, adapter, packed)?);
        }
        let scores = batches.iter().flat_map(|(_, scores)| scores).cloned();
        let scores = scores.collect();
        self.forward = Some(batches);
        Ok(scores)
    }

    fn backward(&mut self, gradients: &[LossGradients]) -> Result<()> {
        let batches = self.forward.take();
        let batches = batches.expect("a forward pass comes before its backward pass");
        let expected: usize = batches.iter().map(|(_, scores)| scores.len()).sum();
        if gradients.len() != expected {
            return Err(ForwardError::Length {
                what: "sequences",
                found: gradients.len(),
                expected,
            });
        }
        let mut rest = gradients;
        let mut all = Vec::with_capacity(batches.len());
        for (batch, scores) in batches {
            let (own, later) = rest.split_at(scores.len());
            rest = later;
            all.push((batch, flatten(&scores, own)?));
        }
        let most = all.iter().map(|(batch, _)| batch.inputs.token_count).max();
        let (model, adapter) = self.state.compute.weights(&self.shared.base.device_model);
        self.scorer
            .reserve_gradients(model, most.unwrap_or(0), adapter)?;
        for (batch, partials) in all {
            let scorer = &*self.scorer;
            let backward = Backward {
                scorer,
                model,
                trained: adapter.map_or(Trained::Full, Trained::Lora),
                gradients: &self.state.gradients,
                work: scorer.gradients.as_ref().expect("there is room for them"),
            };
            backward.run(&batch, &partials)?;
            // Work of a stream is in order, so the next micro-batch may have the buffers.
            self.scorer.stored.push(batch.stored);
        }
        Ok(())
    }

    fn gradient_norm(&mut self) -> Result<f64> {
        let (stream, state) = (&self.scorer.stream, &*self.state);
        let (values, partials) = (state.gradients.address(), state.partials.address());
        let at = (values, partials, state.norm.address());
        stream.squared_norm(at, state.gradients.len())?;
        let mut norm = [0.0];
        stream.download(&state.norm, 0, &mut norm)?;
        Ok(norm[0].sqrt())
    }

    fn step(&mut self, step: OptimizerStep) -> Result<()> {
        let OptimizerStep {
            adamw,
            learning_rate,
            gradient_scale,
        } = step;
        let updates = self.updates + 1;
        let power = |beta: f64| 1.0 / (1.0 - beta.powf(updates as f64));
        // What the host knows is the state before the update.
        self.state.host = None;
        let (stream, state) = (&self.scorer.stream, &*self.state);
        let values = state.compute.values();
        let bf16 = values.precision == Precision::Bf16;
        let arguments = |from: usize, count: usize, decays: bool, copy: Address| AdamWArguments {
            parameters: state.weights.at(from),
            gradients: state.gradients.at(from),
            exp_avg: state.exp_avg.at(from),
            exp_avg_sq: state.exp_avg_sq.at(from),
            copy,
            count: count as i64,
            decayed: if decays { count as i64 } else { 0 },
            rate: learning_rate as f32,
            beta1: adamw.beta1 as f32,
            one_minus_beta1: (1.0 - adamw.beta1) as f32,
            beta2: adamw.beta2 as f32,
            one_minus_beta2: (1.0 - adamw.beta2) as f32,
            bias_correction1: power(adamw.beta1) as f32,
            bias_correction2: power(adamw.beta2) as f32,
            epsilon: adamw.epsilon as f32,
            decay_factor: (1.0 - learning_rate * adamw.weight_decay) as f32,
            scale: gradient_scale as f32,
        };
        let copy = if bf16 {
            values.address()
        } else {
            Address::NULL
        };
        stream.adamw(arguments(0, state.matrices, true, copy))?;
        let rest = state.weights.len() - state.matrices;
        stream.adamw(arguments(state.matrices, rest, false, Address::NULL))?;
        if !bf16 {
            let bytes = state.matrices * size_of::<f32>();
            stream.copy_bytes(state.weights.address(), values.address(), bytes)?;
        }
        stream.synchronize()?;
        self.updates = updates;
        Ok(())
    }

    fn score(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>> {
        let (model, adapter) = self.state.compute.weights(&self.shared.base.device_model);
        self.scorer.score(model, adapter, sequences)
    }

    fn updates(&self) -> u64 {
        self.updates
    }

    fn gradients(&self) -> Result<Vec<Vec<f32>>> {
        self.read(&self.state.gradients)
    }

    fn set_gradients(&mut self, gradients: &[Vec<f32>]) -> Result<()> {
        let tensors: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        let stream = &self.scorer.stream;
        self.state
            .write_gradients(&self.shared.base, stream, &tensors)
    }

    fn weights(&self) -> Result<TrainedWeights> {
        if let Some((weights, _)) = &self.state.host {
            return Ok(weights.clone());
        }
        let values = self.read(&self.state.weights)?;
        Ok(self.initial.with_tensors(values))
    }

    fn optimizer_state(&self) -> Result<AdamWState> {
        if let Some((_, moments)) = &self.state.host {
            return Ok(moments.clone());
        }
        Ok(AdamWState {
            updates: self.updates,
            exp_avg: Arc::new(self.read(&self.state.exp_avg)?),
            exp_avg_sq: Arc::new(self.read(&self.state.exp_avg_sq)?),
        })
    }

    fn finish(mut self: Box<Self>) -> Result<(TrainedWeights, AdamWState)> {
        let read = (self.weights()?, self.optimizer_state()?);
        // The next session may continue from here.
        self.state.host = Some(read.clone());
        Ok(read)
    }

    fn finish_as(mut self: Box<Self>, weights: &TrainedWeights, state: &AdamWState) {
        self.state.host = Some((weights.clone(), state.clone()));
    }
}
