//! The packed weights of a model that is small enough to be in memory twice.
//!
//! Where weights come from the processor's caches, the memory order decides the speed of a product. Where they come
//! from memory it does not matter, and a second copy would take gigabytes, so large models are not packed. Neither are
//! weights in fewer bits: a packed copy would take more memory than they save.

use clawhost_model::{ModelConfig, QuantizedFormat, Weights};

use crate::ops::packed_weights::PackedWeights;

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

/// `[outputs, inputs]` of the four products of a layer.
fn layer_shapes(config: &ModelConfig) -> [(usize, usize); 4] {
    let (h, q, k, f) = (
        config.hidden_size,
        config.query_width(),
        config.key_width(),
        config.intermediate_size,
    );
    [(q + 2 * k, h), (h, q), (2 * f, h), (h, f)]
}

fn head_shape(config: &ModelConfig) -> (usize, usize) {
    (config.vocab_size, config.hidden_size)
}

/// Whether the products of the model are small enough to be packed.
fn is_small(config: &ModelConfig) -> bool {
    let numbers = |(outputs, inputs): (usize, usize)| outputs * inputs;
    let layer: usize = layer_shapes(config).map(numbers).iter().sum();
    let all = numbers(head_shape(config)) + config.num_hidden_layers * layer;
    all * size_of::<f32>() <= MAX_PACKED_BYTES
}

impl ModelPackedWeights {
    /// Packs the weights; `None` for a large or quantized model.
    pub(crate) fn new(config: &ModelConfig, weights: &Weights) -> Option<Self> {
        if weights.is_quantized() || !is_small(config) {
            return None;
        }
        let [qkv, o, gate_up, down] = layer_shapes(config);
        let layers = weights.layers.iter().map(|layer| LayerPackedWeights {
            qkv: PackedWeights::new(&layer.qkv, qkv),
            o: PackedWeights::new(&layer.o, o),
            gate_up: PackedWeights::new(&layer.gate_up, gate_up),
            down: PackedWeights::new(&layer.down, down),
        });
        Some(Self {
            layers: layers.collect(),
            head: PackedWeights::new(weights.head(), head_shape(config)),
        })
    }

    /// Size in bytes of the packed weights of a model with its linear layers in this format, `None` is f32; 0 if it is not
    /// packed.
    pub(crate) fn planned_bytes(config: &ModelConfig, format: Option<QuantizedFormat>) -> usize {
        if format.is_some() || !is_small(config) {
            return 0;
        }
        let layer: usize = layer_shapes(config)
            .map(PackedWeights::planned_bytes)
            .iter()
            .sum();
        config.num_hidden_layers * layer + PackedWeights::planned_bytes(head_shape(config))
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter();
        let layers = layers.flat_map(|layer| [&layer.qkv, &layer.o, &layer.gate_up, &layer.down]);
        layers.chain([&self.head]).map(PackedWeights::bytes).sum()
    }
}
