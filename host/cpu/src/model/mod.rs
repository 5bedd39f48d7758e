//! The decoder: the forward pass of serving, and the layer that serving and training share. Weights are loaded by
//! `clawhost-model`; scheduling is in `clawhost-engine`, losses in `clawhost-training`.

mod adapter;
mod forward;
mod layer;
mod packed_weights;

pub(crate) use adapter::{pack_adapter, packed_pair, planned_pair_bytes};
pub use forward::BatchRow;
pub(crate) use forward::PassRow;
pub(crate) use layer::{Activations, AdapterGroup, LayerPass, LayerValues, Purpose, resize_exact};
pub(crate) use packed_weights::ModelPackedWeights;

use std::sync::OnceLock;

use clawhost_engine::{ForwardError, Sequence, SequenceScores, TrainLimits};
use clawhost_model::{
    Adapter, LoadError, Model, ModelConfig, TrainedWeights, Weights, frequencies,
};

use crate::grad::{GradientTarget, Gradients, TrainPass};
use crate::kv::KvCache;
use crate::merge;
use crate::ops::attention::Shape;
use crate::ops::linear::{Mat, Threads};
use crate::ops::rope::Rope;

/// What the kernels derive from the weights of a model.
struct DerivedModel {
    rope: Rope,
    /// The packed weights, built on first use; `None` for a large model.
    packed: OnceLock<Option<ModelPackedWeights>>,
}

/// A model as the kernels see it.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'m> {
    pub(crate) config: &'m ModelConfig,
    pub(crate) weights: &'m Weights,
    pub(crate) rope: &'m Rope,
    pub(crate) threads: Threads,
    packed: &'m OnceLock<Option<ModelPackedWeights>>,
}

impl<'m> Decoder<'m> {
    pub(crate) fn new(model: &'m Model) -> Self {
        let derived = model.derived().get_or_init(|| {
            let (frequencies, scale) = frequencies(model.config());
            DerivedModel {
                rope: Rope::new(frequencies, scale),
                packed: OnceLock::new(),
            }
        });
        Self {
            config: model.config(),
            weights: model.weights(),
            rope: &derived.rope,
            threads: Threads(model.threads()),
            packed: &derived.packed,
        }
    }

    pub(crate) fn config(&self) -> &'m ModelConfig {
        self.config
    }

    /// The packed weights; packs them on first use.
    pub(crate) fn packed_weights(&self) -> Option<&'m ModelPackedWeights> {
        let packed = || ModelPackedWeights::new(self.config, self.weights);
        self.packed.get_or_init(packed).as_ref()
    }

    /// Bytes of the packed weights; packs them on first use.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.packed_weights().map_or(0, ModelPackedWeights::bytes)
    }

    /// Packs the weights of model and adapter ahead of the first forward pass.
    pub(crate) fn pack_weights(&self, adapter: Option<&Adapter>) {
        let small = self.packed_weights().is_some();
        if let Some(adapter) = adapter.filter(|_| small) {
            pack_adapter(adapter);
        }
    }

    /// The language-model head, `[vocab, hidden]`.
    pub(crate) fn lm_head(&self) -> Mat<'m> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let head = Mat::new(self.weights.head(), vocab, hidden);
        head.with_packed(self.packed_weights().map(|packed| &packed.head))
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            heads: self.config.num_attention_heads,
            kv_heads: self.config.num_key_value_heads,
            dim: self.config.head_dim,
        }
    }

    /// Widths of the queries, of the keys, and of a whole row of queries, keys and values.
    pub(crate) fn qkv_widths(&self) -> (usize, usize, usize) {
        let (q, k) = (self.config.query_width(), self.config.key_width());
        (q, k, q + 2 * k)
    }
}

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

#[cfg(test)]
mod tests;
