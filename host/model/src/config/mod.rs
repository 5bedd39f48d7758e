//! Parses and validates `config.json` of a decoder: every dimension is bounded before memory is allocated for it, and a
//! key that would change the outputs without being implemented is rejected by name.
//!
//! One struct describes all families; their differences (norms on queries and keys, biases, defaults of missing keys)
//! are handled here and nowhere else.

mod family;
mod parse;
mod rope;

pub(crate) use family::Family;
pub use rope::RopeScaling;

use clawhost_config::Target;
use serde::{Deserialize, Serialize};

use crate::error::{LoadError, invalid};

/// The architecture of a decoder, with the keys of Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Class names; the first one is used. Default: that of `model_type`, or `["Qwen3ForCausalLM"]`.
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
    /// Key and value heads; divides the query heads. Default: as many as query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; even. Default: `hidden_size / num_attention_heads`, 128 for Qwen3.
    pub head_dim: usize,
    /// Vocabulary size, the rows of the embedding.
    pub vocab_size: usize,
    /// Maximum context length in tokens.
    pub max_position_embeddings: usize,
    /// Epsilon of every RMS norm. Default 1e-6.
    #[serde(default = "default_eps")]
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies; also read from `rope_parameters`. Default 10000.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// Scaling of the rotary frequencies for long contexts; also read from `rope_parameters`. Default null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the language-model head reuses the embedding. Default false.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Bias on all four attention projections; Llama only. Default false.
    #[serde(default)]
    pub attention_bias: bool,
    /// Bias on the three feed-forward projections; Llama only. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    /// Gate activation; must be `silu`. Default `"silu"`.
    #[serde(default = "default_act")]
    pub hidden_act: String,
    /// Tokens that end a reply, `eos_token_id` as one number or a list. Default none.
    #[serde(default, rename = "eos_token_id", with = "one_or_many")]
    pub eos_token_ids: Vec<u32>,
    /// Sliding-window attention; a window that is never active is read as false, any other is rejected. Default false.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Width of an active window. Default null, 4096 for Mistral.
    #[serde(default)]
    pub sliding_window: Option<usize>,
}

fn default_architectures() -> Vec<String> {
    vec![Family::Qwen3.architecture().to_owned()]
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
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands the field over by reference"
)]
fn is_false(value: &bool) -> bool {
    !value
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
    /// Validates the configuration.
    ///
    /// # Errors
    /// The first invalid key, with its value.
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
                return Err(invalid(
                    key,
                    value,
                    &format!("must be between 1 and {limit}"),
                ));
            }
        }
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return Err(invalid(
                "num_key_value_heads",
                self.num_key_value_heads,
                &format!(
                    "must divide num_attention_heads = {}",
                    self.num_attention_heads
                ),
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(invalid(
                "head_dim",
                self.head_dim,
                "must be even for rotary embeddings",
            ));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(invalid(
                "rms_norm_eps",
                self.rms_norm_eps,
                "must be between 0 and 1",
            ));
        }
        if !(self.rope_theta >= 1.0 && self.rope_theta.is_finite()) {
            return Err(invalid("rope_theta", self.rope_theta, "must be at least 1"));
        }
        if let Some(scaling) = &self.rope_scaling {
            scaling.check(self.head_dim, self.rope_theta)?;
        }
        let family = self.family()?;
        if self.attention_bias && family == Family::Qwen3 {
            return Err(invalid(
                "attention_bias",
                true,
                "is not supported for Qwen3",
            ));
        }
        if self.use_sliding_window || self.sliding_window.is_some() {
            return Err(invalid(
                "sliding_window",
                self.sliding_window.unwrap_or_default(),
                "is active, and sliding-window attention is not supported; use a model without it",
            ));
        }
        if self.hidden_act != "silu" {
            return Err(invalid(
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
            return Err(invalid("eos_token_id", id, "is outside the vocabulary"));
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

    /// Whether the heads of queries and keys are normalized before rotation.
    pub fn has_head_norms(&self) -> bool {
        matches!(self.family(), Ok(Family::Qwen3))
    }

    /// Whether a linear layer has a bias.
    pub fn has_bias(&self, target: Target) -> bool {
        let attention = matches!(target, Target::Q | Target::K | Target::V | Target::O);
        match self.family() {
            Ok(Family::Qwen2) => attention && target != Target::O,
            Ok(Family::Llama) if attention => self.attention_bias,
            Ok(Family::Llama) => self.mlp_bias,
            _ => false,
        }
    }

    fn family(&self) -> Result<Family, LoadError> {
        let named = self.architectures.first().map(String::as_str);
        Family::from_names(named, Some(&self.model_type))
    }
}

/// Where a target is in a model.
pub trait TargetLayer {
    /// Module path within a layer, as in PEFT.
    fn module(self) -> &'static str;
    /// `(inputs, outputs)` of the layer.
    fn widths(self, c: &ModelConfig) -> (usize, usize);
}

impl TargetLayer for Target {
    fn module(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    fn widths(self, c: &ModelConfig) -> (usize, usize) {
        match self {
            Self::Q => (c.hidden_size, c.query_width()),
            Self::K | Self::V => (c.hidden_size, c.key_width()),
            Self::O => (c.query_width(), c.hidden_size),
            Self::Gate | Self::Up => (c.hidden_size, c.intermediate_size),
            Self::Down => (c.intermediate_size, c.hidden_size),
        }
    }
}

/// The radians per position of each pair of a head's values, and the scale of rotated values.
pub fn frequencies(c: &ModelConfig) -> (Vec<f32>, f32) {
    rope::frequencies(c.head_dim, c.rope_theta, c.rope_scaling.as_ref())
}

#[cfg(test)]
mod tests;
