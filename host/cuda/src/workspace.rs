//! The activations of one pass: buffers for a number of tokens that grow when a longer pass needs them, and are otherwise
//! never allocated during a step.

use std::sync::{Arc, OnceLock};

use clawhost_model::ModelConfig;

use crate::device::{Buffer, Driver, Precision, Result, Values};
use crate::projection::Projection;

/// The buffers, each for `tokens` rows.
#[derive(Debug)]
pub(crate) struct Workspace {
    tokens: usize,
    /// Columns of `inner`.
    rank: usize,
    /// Residual stream, `[tokens, hidden]`.
    pub(crate) x: Buffer<f32>,
    /// Residual stream of the rows that the last layer continues with.
    pub(crate) selected: Buffer<f32>,
    /// Input of a projection after its norm.
    pub(crate) normed: Values,
    /// As `normed`, of the feed-forward layer: the backward pass needs both.
    pub(crate) normed_ff: Values,
    pub(crate) qkv: Values,
    /// Attention output.
    pub(crate) attended: Values,
    /// Attention output of the selected rows.
    pub(crate) selected_attended: Values,
    pub(crate) gate_up: Values,
    pub(crate) activated: Values,
    /// `x Aᵀ` of LoRA, `[tokens, rank]`.
    pub(crate) inner: Values,
    /// As `inner`, of the kernels with an adapter per row.
    pub(crate) row_inner: Buffer<f32>,
    /// Cosines and sines, `[tokens, 2, dim / 2]`.
    pub(crate) angles: Buffer<f32>,
    /// A quantized weight that has been restored.
    pub(crate) restored: OnceLock<Values>,
}

impl Workspace {
    /// Bytes of the buffers for one token.
    pub(crate) fn bytes_per_token(c: &ModelConfig, precision: Precision, rank: usize) -> usize {
        let qkv = Projection::Qkv.widths(c).1;
        let (h, q, f) = (c.hidden_size, c.query_width(), c.intermediate_size);
        let values = 2 * h + qkv + 2 * q + 3 * f + rank;
        values * precision.bytes() + (2 * h + 3 * rank + c.head_dim) * size_of::<f32>()
    }

    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        c: &ModelConfig,
        precision: Precision,
        (tokens, rank): (usize, usize),
    ) -> Result<Self> {
        let values = |width: usize| Values::new(driver, precision, tokens * width);
        let (h, q, f) = (c.hidden_size, c.query_width(), c.intermediate_size);
        Ok(Self {
            tokens,
            rank,
            x: Buffer::new(driver, tokens * h)?,
            selected: Buffer::new(driver, tokens * h)?,
            normed: values(h)?,
            normed_ff: values(h)?,
            qkv: values(Projection::Qkv.widths(c).1)?,
            attended: values(q)?,
            selected_attended: values(q)?,
            gate_up: values(2 * f)?,
            activated: values(f)?,
            inner: values(rank)?,
            row_inner: Buffer::new(driver, tokens * 3 * rank)?,
            angles: Buffer::new(driver, tokens * c.head_dim)?,
            restored: OnceLock::new(),
        })
    }

    /// Whether it has room for this many tokens and this rank.
    pub(crate) fn fits(&self, (tokens, rank): (usize, usize)) -> bool {
        tokens <= self.tokens && rank <= self.rank
    }

    /// The sizes that have room for this as well.
    pub(crate) fn grown(&self, (tokens, rank): (usize, usize)) -> (usize, usize) {
        (self.tokens.max(tokens), self.rank.max(rank))
    }
}
