//! A training session in host memory: a copy-on-write copy of the weights, one gradient buffer per tensor and AdamW's
//! moments.

use std::sync::Arc;

use clawhost_engine::{
    AdamWState, ForwardError, LossGradients, OptimizerStep, Sequence, SequenceScores, TrainLimits,
    TrainSession,
};
use clawhost_model::{Model, TrainedWeights};

use crate::cpu_model::CpuWeights;
use crate::grad::{GradientTarget, Gradients, StoredPass};
use crate::model::Decoder;
use crate::optimizer::{Parameter, update_adamw};

/// Trainable weights over a base model.
pub(crate) struct CpuTrainSession {
    base: Arc<Model>,
    weights: TrainedWeights,
    gradients: Gradients,
    state: AdamWState,
    limits: TrainLimits,
    /// The forward pass that is not differentiated yet.
    pass: Option<StoredPass>,
}

impl CpuTrainSession {
    pub(crate) fn new(
        base: Arc<Model>,
        weights: TrainedWeights,
        state: Option<AdamWState>,
        limits: TrainLimits,
    ) -> Result<Self, ForwardError> {
        if !weights.fits(&base) {
            return Err(ForwardError::Adapter);
        }
        let tensors = weights.tensors();
        let lengths: Vec<usize> = tensors.iter().map(|(_, values)| values.len()).collect();
        drop(tensors);
        let state = state.unwrap_or_else(|| AdamWState::zeros(lengths.iter().copied()));
        if !state.fits(&lengths) {
            return Err(ForwardError::OptimizerState {
                found: state.exp_avg.iter().map(Vec::len).sum(),
                expected: lengths.iter().sum(),
            });
        }
        Ok(Self {
            gradients: weights.gradients(),
            base,
            weights,
            state,
            limits,
            pass: None,
        })
    }
}

impl TrainSession for CpuTrainSession {
    fn zero_gradients(&mut self) -> Result<(), ForwardError> {
        self.gradients.clear();
        Ok(())
    }

    fn forward(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError> {
        // Frees the memory of an earlier pass first.
        self.pass = None;
        let pass = self
            .weights
            .forward_train(&self.base, sequences, self.limits)?;
        let scores = pass.scores().to_vec();
        self.pass = Some(pass.into_stored());
        Ok(scores)
    }

    fn backward(&mut self, gradients: &[LossGradients]) -> Result<(), ForwardError> {
        let stored = self.pass.take();
        let stored = stored.expect("a forward pass runs before each backward pass");
        let model = Decoder::new(self.weights.model(&self.base));
        let target = match &self.weights {
            TrainedWeights::Lora(adapter) => GradientTarget::Lora(adapter),
            TrainedWeights::Full(_) => GradientTarget::Full,
        };
        model
            .resume_pass(target, stored)
            .backward(gradients, &mut self.gradients)
    }

    fn gradient_norm(&mut self) -> Result<f64, ForwardError> {
        Ok(self.gradients.norm())
    }

    fn step(&mut self, step: OptimizerStep) -> Result<(), ForwardError> {
        // It belongs to the weights before the update.
        self.pass = None;
        let threads = self.base.threads();
        let mut tensors = self.weights.tensors_mut();
        let mut parameters: Vec<Parameter<'_>> = tensors
            .iter_mut()
            .map(|(name, values)| Parameter::from_name(name, values))
            .collect();
        update_adamw(
            step,
            &mut self.state,
            &mut parameters,
            &self.gradients.tensors,
            threads,
        )
    }

    fn score(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError> {
        self.weights.score(&self.base, sequences)
    }

    fn updates(&self) -> u64 {
        self.state.updates
    }

    fn gradients(&self) -> Result<Vec<Vec<f32>>, ForwardError> {
        Ok(self.gradients.tensors.clone())
    }

    fn set_gradients(&mut self, gradients: &[Vec<f32>]) -> Result<(), ForwardError> {
        assert_eq!(gradients.len(), self.gradients.tensors.len());
        for (own, values) in self.gradients.tensors.iter_mut().zip(gradients) {
            own.copy_from_slice(values);
        }
        Ok(())
    }

    fn weights(&self) -> Result<TrainedWeights, ForwardError> {
        Ok(self.weights.clone())
    }

    fn optimizer_state(&self) -> Result<AdamWState, ForwardError> {
        Ok(self.state.clone())
    }

    fn finish(self: Box<Self>) -> Result<(TrainedWeights, AdamWState), ForwardError> {
        Ok((self.weights, self.state))
    }
}
