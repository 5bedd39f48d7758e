//! Small models, adapters and GGUF files for tests.

mod gguf;

pub use gguf::GgufFile;

use crate::{Adapter, LoraSpec, Model, ModelConfig};

/// A decoder of two layers.
///
/// # Panics
/// Never: the configuration is valid.
pub fn tiny() -> ModelConfig {
    ModelConfig::parse(
        br#"{"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97,
            "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": 1}"#,
    )
    .expect("the configuration is valid")
}

/// The digest of a model in old records.
///
/// # Panics
/// When its weights are not in host memory.
pub fn unversioned_digest(model: &Model) -> String {
    model.weights().unversioned_digest(model.config())
}

/// An adapter with a visible effect on the model.
pub fn random_adapter(config: &ModelConfig, seed: u64) -> Adapter {
    let spec = LoraSpec {
        rank: 4,
        ..LoraSpec::default()
    };
    let mut adapter = Adapter::init(config, spec, seed);
    for (i, (_, values)) in adapter.tensors_mut().into_iter().enumerate() {
        for (j, v) in values.iter_mut().enumerate() {
            *v += 0.05 * ((i * 31 + j * 7 + seed as usize) as f32).sin();
        }
    }
    adapter
}
