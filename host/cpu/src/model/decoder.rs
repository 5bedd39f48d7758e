//! A model as the kernels see it.

use std::sync::OnceLock;

use clawhost_model::{Adapter, Model, ModelConfig, Weights, frequencies};

use super::adapter::pack_adapter;
use super::packed_weights::ModelPackedWeights;
use crate::ops::attention::Shape;
use crate::ops::linear::Mat;
use crate::ops::rope::Rope;
use crate::ops::thread_pool::Threads;

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
    pub(super) packed: &'m OnceLock<Option<ModelPackedWeights>>,
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
