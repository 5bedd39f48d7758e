//! The shape of an adapter: which linear layers it changes, rank and alpha.

use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;
use crate::error::LoadError;

/// A linear layer that an adapter can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Target {
    /// Query projection.
    #[serde(rename = "q_proj")]
    Q,
    /// Key projection.
    #[serde(rename = "k_proj")]
    K,
    /// Value projection.
    #[serde(rename = "v_proj")]
    V,
    /// Attention output projection.
    #[serde(rename = "o_proj")]
    O,
    /// Gate of the feed-forward layer.
    #[serde(rename = "gate_proj")]
    Gate,
    /// Up projection of the feed-forward layer.
    #[serde(rename = "up_proj")]
    Up,
    /// Down projection of the feed-forward layer.
    #[serde(rename = "down_proj")]
    Down,
}

impl Target {
    /// Every target, in listing order.
    pub const ALL: [Self; 7] = [
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Module path within a layer, as in PEFT.
    pub(crate) fn module(self) -> &'static str {
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

    /// `(inputs, outputs)` of the layer.
    pub(crate) fn widths(self, c: &ModelConfig) -> (usize, usize) {
        match self {
            Self::Q => (c.hidden_size, c.query_width()),
            Self::K | Self::V => (c.hidden_size, c.key_width()),
            Self::O => (c.query_width(), c.hidden_size),
            Self::Gate | Self::Up => (c.hidden_size, c.intermediate_size),
            Self::Down => (c.intermediate_size, c.hidden_size),
        }
    }
}

/// Shape of an adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraSpec {
    /// Rank of the update. Default 16.
    pub rank: usize,
    /// Alpha: the update is scaled by `alpha / rank`. Default 32.
    pub alpha: f32,
    /// Layers that are adapted. Default all seven.
    pub targets: Vec<Target>,
}

impl Default for LoraSpec {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            targets: Target::ALL.to_vec(),
        }
    }
}

impl LoraSpec {
    /// The targets in listing order, without duplicates.
    pub(super) fn sorted_targets(&self) -> impl Iterator<Item = Target> + '_ {
        Target::ALL.into_iter().filter(|t| self.targets.contains(t))
    }

    pub(super) fn check(&self) -> Result<(), LoadError> {
        if self.rank == 0 || self.rank > 1024 {
            return Err(mismatch(format!("rank {} is outside 1..=1024", self.rank)));
        }
        if !self.alpha.is_finite() || self.targets.is_empty() {
            return Err(mismatch(
                "alpha must be finite and targets must not be empty".to_owned(),
            ));
        }
        Ok(())
    }
}

/// The alpha of plain LoRA for an update that is scaled by `alpha / rank` or, with rank-stabilized LoRA (Kalajdzievski
/// 2023), by `alpha / sqrt(rank)`.
pub(super) fn plain_alpha(rank: usize, alpha: f32, rank_stabilized: bool) -> f32 {
    if rank_stabilized {
        alpha * (rank as f32).sqrt()
    } else {
        alpha
    }
}

pub(super) fn mismatch(reason: String) -> LoadError {
    LoadError::AdapterMismatch { reason }
}
