//! `config.json` of a decoder, read with suspicion: every dimension is bounded before memory is
//! taken for it.

use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// Shape of a decoder of the Qwen3 family, in the terms of Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Class names; the first decides. Default `["Qwen3ForCausalLM"]`.
    #[serde(default = "default_architectures")]
    pub architectures: Vec<String>,
    /// Family name. Default `"qwen3"`.
    #[serde(default = "default_model_type")]
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest context in tokens.
    pub max_position_embeddings: usize,
    /// Added under the root in every normalisation. Default 1e-6.
    #[serde(default = "default_eps")]
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies. Default 10000.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// The head reuses the embedding. Default false.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Bias on the attention projections; must be false here. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// Gate activation; must be `silu`. Default `"silu"`.
    #[serde(default = "default_act")]
    pub hidden_act: String,
    /// Tokens that end a reply, `eos_token_id` as one number or a list. Default none.
    #[serde(default, rename = "eos_token_id", with = "one_or_many")]
    pub eos_token_ids: Vec<u32>,
    /// Rotary scaling; none is supported here. Default null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<serde_json::Value>,
    /// Sliding-window attention; must be false here. Default false.
    #[serde(default)]
    pub use_sliding_window: bool,
}

fn default_architectures() -> Vec<String> {
    vec!["Qwen3ForCausalLM".to_owned()]
}
fn default_model_type() -> String {
    "qwen3".to_owned()
}
fn default_eps() -> f32 {
    1e-6
}
fn default_theta() -> f32 {
    10_000.0
}
fn default_act() -> String {
    "silu".to_owned()
}

mod one_or_many {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Ids {
        One(u32),
        Many(Vec<u32>),
    }

    pub(super) fn serialize<S: Serializer>(ids: &[u32], s: S) -> Result<S::Ok, S::Error> {
        ids.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u32>, D::Error> {
        Ok(match Option::<Ids>::deserialize(d)? {
            None => Vec::new(),
            Some(Ids::One(id)) => vec![id],
            Some(Ids::Many(ids)) => ids,
        })
    }
}

impl ModelConfig {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// Malformed JSON, an architecture other than Qwen3, or a dimension that cannot be.
    pub fn parse(text: &[u8]) -> Result<Self, LoadError> {
        let probe: serde_json::Value =
            serde_json::from_slice(text).map_err(|e| LoadError::Malformed {
                file: "config.json".to_owned(),
                reason: e.to_string(),
            })?;
        let found = probe
            .get("architectures")
            .and_then(|a| a.get(0))
            .and_then(|a| a.as_str())
            .unwrap_or("Qwen3ForCausalLM");
        if found != "Qwen3ForCausalLM" {
            return Err(LoadError::Architecture {
                found: found.to_owned(),
                supported: "Qwen3ForCausalLM",
            });
        }
        let config: Self = serde_json::from_value(probe).map_err(|e| LoadError::Malformed {
            file: "config.json".to_owned(),
            reason: e.to_string(),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks that the dimensions can describe a model.
    ///
    /// # Errors
    /// The first key that cannot be, with its value.
    pub fn check(&self) -> Result<(), LoadError> {
        let bounds: [(&'static str, usize, usize); 8] = [
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.intermediate_size, 1 << 18),
            ("num_hidden_layers", self.num_hidden_layers, 1 << 10),
            ("num_attention_heads", self.num_attention_heads, 1 << 10),
            ("num_key_value_heads", self.num_key_value_heads, 1 << 10),
            ("head_dim", self.head_dim, 1 << 10),
            ("vocab_size", self.vocab_size, 1 << 21),
            (
                "max_position_embeddings",
                self.max_position_embeddings,
                1 << 24,
            ),
        ];
        for (key, value, limit) in bounds {
            if value == 0 || value > limit {
                return Err(bad(key, value, &format!("must be between 1 and {limit}")));
            }
        }
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return Err(bad(
                "num_key_value_heads",
                self.num_key_value_heads,
                &format!(
                    "must divide num_attention_heads = {}",
                    self.num_attention_heads
                ),
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad(
                "head_dim",
                self.head_dim,
                "must be even for rotary positions",
            ));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(bad(
                "rms_norm_eps",
                self.rms_norm_eps,
                "must be between 0 and 1",
            ));
        }
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(bad("rope_theta", self.rope_theta, "must be at least 1"));
        }
        if self.attention_bias {
            return Err(bad(
                "attention_bias",
                true,
                "is not part of Qwen3 as served here",
            ));
        }
        if self.use_sliding_window {
            return Err(bad("use_sliding_window", true, "is not supported"));
        }
        if let Some(scaling) = self.rope_scaling.as_ref().filter(|v| !v.is_null()) {
            return Err(bad(
                "rope_scaling",
                scaling,
                "is not supported; use the unscaled model",
            ));
        }
        if self.hidden_act != "silu" {
            return Err(bad(
                "hidden_act",
                &self.hidden_act,
                "is not supported; expected silu",
            ));
        }
        if let Some(id) = self
            .eos_token_ids
            .iter()
            .find(|id| **id as usize >= self.vocab_size)
        {
            return Err(bad("eos_token_id", id, "is outside the vocabulary"));
        }
        Ok(())
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn key_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }
}

fn bad(key: &'static str, value: impl std::fmt::Display, problem: &str) -> LoadError {
    LoadError::Config {
        key,
        value: value.to_string(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(change: &str) -> Vec<u8> {
        let mut value = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 512, "eos_token_id": 7
        });
        if let Some((key, new)) = change.split_once('=') {
            value[key] = serde_json::from_str(new).unwrap();
        }
        value.to_string().into_bytes()
    }

    #[test]
    fn a_plain_config_parses_with_defaults() {
        let config = ModelConfig::parse(&json("")).unwrap();
        assert_eq!(config.eos_token_ids, vec![7]);
        assert_eq!(config.rms_norm_eps, 1e-6);
        assert_eq!(config.query_width(), 64);
    }

    #[test]
    fn eos_may_be_a_list() {
        assert_eq!(
            ModelConfig::parse(&json("eos_token_id=[1,2]"))
                .unwrap()
                .eos_token_ids,
            [1, 2]
        );
    }

    #[test]
    fn each_impossible_value_is_named() {
        for (change, name) in [
            ("hidden_size=0", "hidden_size"),
            ("vocab_size=999999999", "vocab_size"),
            ("num_key_value_heads=3", "num_key_value_heads"),
            ("head_dim=15", "head_dim"),
            ("rms_norm_eps=-1", "rms_norm_eps"),
            ("attention_bias=true", "attention_bias"),
            ("rope_scaling={\"type\":\"yarn\"}", "rope_scaling"),
            ("hidden_act=\"gelu\"", "hidden_act"),
            ("eos_token_id=100", "eos_token_id"),
            ("architectures=[\"MambaForCausalLM\"]", "MambaForCausalLM"),
        ] {
            let message = ModelConfig::parse(&json(change)).unwrap_err().to_string();
            assert!(message.contains(name), "{change}: {message}");
        }
    }
}
