//! A model and its trained weights on the CPU, without an engine: forward pass, scores and training passes.

use clawhost_engine::{ForwardError, Sequence, SequenceScores, TrainLimits};
use clawhost_model::{Adapter, LoadError, Model, TrainedWeights};

use crate::grad::{GradientTarget, Gradients, TrainPass};
use crate::kv::KvCache;
use crate::merge;
use crate::model::{BatchRow, Decoder};

/// A model on the CPU, without an engine.
pub trait CpuModel {
    /// An empty KV cache for a new sequence.
    fn new_cache(&self) -> KvCache;

    /// Runs every row's new tokens after its cached ones and returns the logits of each row's last token, `[rows,
    /// vocab]` row-major. Caches are extended only when all rows are valid.
    ///
    /// # Errors
    /// An empty row, a token outside the vocabulary, or an adapter of another shape.
    fn forward(&self, rows: &mut [BatchRow<'_>]) -> Result<Vec<f32>, ForwardError>;

    /// Computes log-probs and entropies of recorded tokens, without state for a backward pass.
    ///
    /// # Errors
    /// A token outside the vocabulary, an invalid start or temperature, or an adapter of another shape.
    fn score(
        &self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError>;

    /// As [`CpuModel::score`], and stores what the backward pass needs: one `[tokens, hidden]` input per layer, and of the
    /// last layers as many activations as the limits allow.
    ///
    /// # Errors
    /// As [`CpuModel::score`].
    fn forward_train<'m>(
        &'m self,
        target: GradientTarget<'m>,
        sequences: &[Sequence<'_>],
        limits: TrainLimits,
    ) -> Result<TrainPass<'m>, ForwardError>;

    /// Returns a copy of this model with the adapter merged into its weights.
    ///
    /// # Errors
    /// An adapter for a model of another shape.
    fn merge_adapter(&self, adapter: &Adapter) -> Result<Model, LoadError>;
}

impl CpuModel for Model {
    fn new_cache(&self) -> KvCache {
        KvCache::new(self.config())
    }

    fn forward(&self, rows: &mut [BatchRow<'_>]) -> Result<Vec<f32>, ForwardError> {
        Decoder::new(self).forward_batch(rows)
    }

    fn score(
        &self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        Decoder::new(self).score(adapter, sequences)
    }

    fn forward_train<'m>(
        &'m self,
        target: GradientTarget<'m>,
        sequences: &[Sequence<'_>],
        limits: TrainLimits,
    ) -> Result<TrainPass<'m>, ForwardError> {
        Decoder::new(self).forward_train(target, sequences, limits)
    }

    fn merge_adapter(&self, adapter: &Adapter) -> Result<Model, LoadError> {
        merge::merge_adapter(self, adapter)
    }
}

/// Trained weights on the CPU, without an engine.
pub trait CpuWeights {
    /// [`CpuModel::score`] with these weights.
    ///
    /// # Errors
    /// As [`CpuModel::score`].
    fn score(
        &self,
        base: &Model,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError>;

    /// [`CpuModel::forward_train`] with these weights, which it differentiates.
    ///
    /// # Errors
    /// As [`CpuModel::forward_train`].
    fn forward_train<'m>(
        &'m self,
        base: &'m Model,
        sequences: &[Sequence<'_>],
        limits: TrainLimits,
    ) -> Result<TrainPass<'m>, ForwardError>;

    /// Zero gradients for all trainable values.
    fn gradients(&self) -> Gradients;
}

impl CpuWeights for TrainedWeights {
    fn score(
        &self,
        base: &Model,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        let adapter = self.adapter().map(AsRef::as_ref);
        self.model(base).score(adapter, sequences)
    }

    fn forward_train<'m>(
        &'m self,
        base: &'m Model,
        sequences: &[Sequence<'_>],
        limits: TrainLimits,
    ) -> Result<TrainPass<'m>, ForwardError> {
        let (model, target) = match self {
            Self::Lora(adapter) => (base, GradientTarget::Lora(adapter)),
            Self::Full(model) => (model.as_ref(), GradientTarget::Full),
        };
        model.forward_train(target, sequences, limits)
    }

    fn gradients(&self) -> Gradients {
        match self {
            Self::Lora(adapter) => Gradients::for_adapter(adapter),
            Self::Full(model) => Gradients::for_model(model),
        }
    }
}
