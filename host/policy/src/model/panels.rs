//! The weights of a model in panels, for a model that is small enough to lie in memory twice.
//!
//! Where weights come from the processor's caches, the order in which a product reads them decides how fast it is.
//! Where they come from memory it does not, and a second copy would be gigabytes: such a model goes without.

use crate::config::ModelConfig;
use crate::ops::panels::Panels;
use crate::weights::Weights;

/// Bytes of weights up to which a model has panels.
const SMALL: usize = 256 << 20;

/// Panels of a layer's products.
#[derive(Debug, Clone)]
pub(crate) struct LayerPanels {
    pub(crate) qkv: Panels,
    pub(crate) o: Panels,
    pub(crate) gate_up: Panels,
    pub(crate) down: Panels,
}

/// Panels of all products of a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelPanels {
    pub(crate) layers: Vec<LayerPanels>,
    pub(crate) head: Panels,
}

impl ModelPanels {
    /// Lays out the weights; none of a large model.
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
        if numbers * size_of::<f32>() > SMALL {
            return None;
        }
        let layers = weights.layers.iter().map(|layer| LayerPanels {
            qkv: Panels::new(&layer.qkv, (q + 2 * k, h)),
            o: Panels::new(&layer.o, (h, q)),
            gate_up: Panels::new(&layer.gate_up, (2 * f, h)),
            down: Panels::new(&layer.down, (h, f)),
        });
        Some(Self {
            layers: layers.collect(),
            head: Panels::new(head, (config.vocab_size, h)),
        })
    }
}
