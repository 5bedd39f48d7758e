//! Shapes of known models, to measure their speed without their weights.

use anyhow::Result;
use clap::ValueEnum;
use clawhost_model::{Model, ModelConfig};
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
        Ok(Model::random(self.config()?, 1))
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
