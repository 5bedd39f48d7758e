//! The packed weights of a model that is small enough to be in memory twice.
//!
//! Where weights come from the processor's caches, the memory order decides the speed of a product. Where they come
//! from memory it does not matter, and a second copy would take gigabytes, so large models are not packed.

use crate::config::ModelConfig;
use crate::ops::packed_weights::PackedWeights;
use crate::weights::Weights;

/// Maximum size of the weights, in bytes, for which a model is packed.
const MAX_PACKED_BYTES: usize = 256 << 20;

/// The packed weights of one layer.
#[derive(Debug, Clone)]
pub(crate) struct LayerPackedWeights {
    pub(crate) qkv: PackedWeights,
    pub(crate) o: PackedWeights,
    pub(crate) gate_up: PackedWeights,
    pub(crate) down: PackedWeights,
}

/// The packed weights of all products of a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelPackedWeights {
    pub(crate) layers: Vec<LayerPackedWeights>,
    pub(crate) head: PackedWeights,
}

impl ModelPackedWeights {
    /// Packs the weights; `None` for a large model.
    pub(crate) fn new(config: &ModelConfig, weights: &Weights) -> Option<Self> {
        let (h, q, k, f) = (
            config.hidden_size,
            config.query_width(),
            config.key_width(),
            config.intermediate_size,
        );
        let head = weights.head();
        let layer = (q + 2 * k) * h + h * q + 3 * h * f;
        let numbers = head.len() + config.num_hidden_layers * layer;
        if numbers * size_of::<f32>() > MAX_PACKED_BYTES {
            return None;
        }
        let layers = weights.layers.iter().map(|layer| LayerPackedWeights {
            qkv: PackedWeights::new(&layer.qkv, (q + 2 * k, h)),
            o: PackedWeights::new(&layer.o, (h, q)),
            gate_up: PackedWeights::new(&layer.gate_up, (2 * f, h)),
            down: PackedWeights::new(&layer.down, (h, f)),
        });
        Some(Self {
            layers: layers.collect(),
            head: PackedWeights::new(head, (config.vocab_size, h)),
        })
    }
}
