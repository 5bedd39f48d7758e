//! The gradients of one layer's activations: buffers for a number of tokens, reused by all layers and passes.

use std::sync::Arc;

use clawhost_model::ModelConfig;

use crate::device::{Buffer, Driver, Precision, Result, Values};
use crate::projection::Projection;

/// The gradients of one layer's activations, each for `tokens` rows.
#[derive(Debug)]
pub(crate) struct GradientWorkspace {
    tokens: usize,
    rank: usize,
    /// Gradient of the residual stream, and room to move its rows.
    pub(crate) dx: Values,
    pub(crate) moved: Values,
    pub(crate) dactivated: Values,
    pub(crate) dnormed: Values,
    pub(crate) dattended: Values,
    pub(crate) moved_attended: Values,
    pub(crate) dqkv: Values,
    pub(crate) dinner: Values,
    /// Queries, keys and values before norm and rotation.
    pub(crate) raw: Values,
    /// Their gradients after the norm: full-parameter training.
    pub(crate) rotated: Values,
    /// Inverse root mean squares of rows, or of heads.
    pub(crate) scales: Buffer<f32>,
    /// Of the softmax of attention, `[heads, tokens]`.
    pub(crate) lse: Buffer<f32>,
    pub(crate) delta: Buffer<f32>,
}

impl GradientWorkspace {
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        c: &ModelConfig,
        precision: Precision,
        (tokens, rank): (usize, usize),
    ) -> Result<Self> {
        let values = |width: usize| Values::new(driver, precision, tokens * width);
        let floats = |width: usize| Buffer::new(driver, tokens * width);
        let (h, q, qkv) = (c.hidden_size, c.query_width(), Projection::Qkv.widths(c).1);
        Ok(Self {
            tokens,
            rank,
            dx: values(h)?,
            moved: values(h)?,
            dactivated: values(c.intermediate_size)?,
            dnormed: values(h)?,
            dattended: values(q)?,
            moved_attended: values(q)?,
            dqkv: values(qkv)?,
            dinner: values(rank)?,
            raw: values(qkv)?,
            rotated: values(qkv)?,
            scales: floats(c.num_attention_heads + c.num_key_value_heads)?,
            lse: floats(c.num_attention_heads)?,
            delta: floats(c.num_attention_heads)?,
        })
    }

    /// Bytes of the buffers for one token.
    pub(crate) fn bytes_per_token(c: &ModelConfig, precision: Precision, rank: usize) -> usize {
        let (h, q, qkv) = (c.hidden_size, c.query_width(), Projection::Qkv.widths(c).1);
        let values = 3 * h + c.intermediate_size + 2 * q + 3 * qkv + rank;
        let heads = 3 * c.num_attention_heads + c.num_key_value_heads;
        values * precision.bytes() + heads * size_of::<f32>()
    }

    pub(crate) fn fits(&self, (tokens, rank): (usize, usize)) -> bool {
        tokens <= self.tokens && rank <= self.rank
    }
}
