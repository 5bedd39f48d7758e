//! `[training.lora]`: which linear layers an adapter changes, rank and alpha.

use serde::{Deserialize, Serialize};

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
