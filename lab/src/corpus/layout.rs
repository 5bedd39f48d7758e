//! The files of a checkpoint in Hugging Face layout, except the weights.

use serde_json::{Value, json};

use crate::corpus::encoding::CHAT_TEMPLATE;
use crate::corpus::recipe::Recipe;
use crate::corpus::vocabulary::{END_OF_TEXT, MESSAGE_END, MESSAGE_START};

/// Default sampling temperature of the embedded model.
pub const SERVED_TEMPERATURE: f32 = 0.8;

/// One file of a checkpoint: its name and its bytes.
pub type CheckpointFile = (&'static str, Vec<u8>);

impl Recipe {
    /// `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and
    /// `chat_template.jinja` for a model with this recipe's shape and the given tokenizer.
    pub fn checkpoint_files(&self, tokenizer_json: &[u8]) -> Vec<CheckpointFile> {
        vec![
            ("config.json", pretty(&self.config())),
            ("generation_config.json", pretty(&self.generation_config())),
            ("tokenizer.json", tokenizer_json.to_vec()),
            ("tokenizer_config.json", pretty(&self.tokenizer_config())),
            ("chat_template.jinja", CHAT_TEMPLATE.as_bytes().to_vec()),
        ]
    }

    /// `config.json` of a model with this recipe's shape.
    pub fn config(&self) -> Value {
        let m = &self.model;
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": END_OF_TEXT_ID,
            "eos_token_id": MESSAGE_END_ID,
            "pad_token_id": END_OF_TEXT_ID,
            "head_dim": m.head_dim,
            "hidden_act": "silu",
            "hidden_size": m.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": m.intermediate_size,
            "max_position_embeddings": m.max_position_embeddings,
            "num_attention_heads": m.num_attention_heads,
            "num_hidden_layers": m.num_hidden_layers,
            "num_key_value_heads": m.num_key_value_heads,
            "rms_norm_eps": m.rms_norm_eps,
            "rope_scaling": null,
            "rope_theta": m.rope_theta,
            "sliding_window": null,
            "tie_word_embeddings": m.tie_word_embeddings,
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": self.tokenizer.vocab,
        })
    }

    fn generation_config(&self) -> Value {
        json!({
            "bos_token_id": END_OF_TEXT_ID,
            "do_sample": true,
            "eos_token_id": [MESSAGE_END_ID, END_OF_TEXT_ID],
            "pad_token_id": END_OF_TEXT_ID,
            "temperature": SERVED_TEMPERATURE,
            "top_k": 0,
            "top_p": 1.0,
        })
    }

    fn tokenizer_config(&self) -> Value {
        json!({
            "add_bos_token": false,
            "additional_special_tokens": [MESSAGE_START, MESSAGE_END],
            "bos_token": null,
            "clean_up_tokenization_spaces": false,
            "eos_token": MESSAGE_END,
            "model_max_length": self.model.max_position_embeddings,
            "pad_token": END_OF_TEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": null,
        })
    }
}

/// Added tokens come first in the vocabulary, in the order of their list.
pub(crate) const END_OF_TEXT_ID: u32 = 0;
/// See [`END_OF_TEXT_ID`].
pub(crate) const MESSAGE_END_ID: u32 = 2;

fn pretty(value: &Value) -> Vec<u8> {
    // `{:#}` of a JSON value is its indented form and cannot fail.
    format!("{value:#}\n").into_bytes()
}
