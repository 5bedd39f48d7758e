//! Shapes of known models, to measure their speed without their weights.

use anyhow::Result;
use clap::ValueEnum;
use clawhost_model::{Model, ModelConfig, Weights};
use serde_json::json;

/// The shape of a known model, a Qwen3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shape {
    /// 0.6 billion parameters
    #[value(name = "qwen3-0.6b")]
    Small,
    /// 1.7 billion parameters
    #[value(name = "qwen3-1.7b")]
    Middle,
    /// 4 billion parameters
    #[value(name = "qwen3-4b")]
    Large,
}

impl Shape {
    /// A model of this shape with random weights.
    pub(super) fn model(self) -> Result<Model> {
        let config = self.config()?;
        let mut weights = Weights::zeros(&config);
        let deep = (2.0 * config.num_hidden_layers as f32).sqrt().recip();
        // Drawing billions of numbers would take minutes; their speed in a product is that of any numbers.
        let numbers = uniform(1 << 20, 0.02);
        let mut at = 0;
        for (name, values) in weights.tensors_mut(&config) {
            let scale = match name.as_str() {
                name if name.contains("norm") => continue,
                name if name.contains("o_proj") || name.contains("down_proj") => deep,
                _ => 1.0,
            };
            for part in values.chunks_mut(numbers.len() / 2) {
                let from = &numbers[at..];
                part.iter_mut()
                    .zip(from)
                    .for_each(|(value, number)| *value = scale * number);
                at = (at + 7919) % (numbers.len() / 2);
            }
        }
        Ok(Model::with_weights(config, weights))
    }

    fn config(self) -> Result<ModelConfig> {
        let (hidden, inner, layers, heads) = match self {
            Self::Small => (1024, 3072, 28, 16),
            Self::Middle => (2048, 6144, 28, 16),
            Self::Large => (2560, 9728, 36, 32),
        };
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
            "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
            "max_position_embeddings": 40_960, "rope_theta": 1_000_000.0, "tie_word_embeddings": true,
        });
        Ok(ModelConfig::parse(config.to_string().as_bytes())?)
    }
}

/// Numbers of this standard deviation around 0, by SplitMix64.
fn uniform(count: usize, sigma: f32) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) >> 40
    };
    let mut number = || next() as f32 / (1 << 23) as f32 - 1.0;
    (0..count)
        .map(|_| 3.0_f32.sqrt() * sigma * number())
        .collect()
}
