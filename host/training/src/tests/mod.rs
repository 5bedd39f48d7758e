//! Tests of the trainer with a real journal, a real engine and a tiny model.

use clawhost_journal::{SampleId, SampleProvenance, SampleRecord, SampleState, SessionId, TurnId};
use clawhost_model::{Model, ModelConfig};

mod auxiliary;
mod components;
mod distillation;
mod engine_verification;
mod estimators;
mod experience;
mod few_shot;
mod fixture;
mod forced_tokens;
mod full;
mod import;
mod loops;
mod offline;
mod owners;
mod publisher;
mod remote_teacher;
mod resume;
mod steps;

/// A queued sample with two reply tokens.
pub(crate) fn sample(id: i64, reward: f32) -> SampleRecord {
    SampleRecord {
        id: SampleId(id),
        turn: TurnId(id),
        session: SessionId("s".to_owned()),
        group: format!("g{id}"),
        reward: Some(reward),
        hints: Vec::new(),
        baseline_key: "default".to_owned(),
        provenance: SampleProvenance::default(),
        state: SampleState::Queued,
        reason: None,
        step: None,
        advantage: None,
        created_ms: 0,
        prompt_ids: vec![1, 2],
        token_ids: vec![3, 4],
        logprobs: vec![-1.0, -1.0],
        full_logprobs: vec![-1.0, -1.0],
        forced: Vec::new(),
        temperature: 1.0,
        adapter_version: 0,
    }
}

/// A model of a few thousand parameters with a vocabulary of 24.
pub(crate) fn tiny_model(seed: u64) -> Model {
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 24,
        "max_position_embeddings": 128, "tie_word_embeddings": true, "eos_token_id": 0,
    });
    let config = ModelConfig::parse(config.to_string().as_bytes()).unwrap();
    Model::random(config, seed)
}
