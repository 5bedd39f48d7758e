//! Sizes of the heads, and the keys and values of one of them.

/// Head sizes of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

impl Shape {
    pub(super) fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Multiply-adds of the scores of `tokens` new positions after `past` earlier ones, without subtracting the causal
    /// half.
    pub(crate) fn macs(self, tokens: usize, past: usize) -> usize {
        tokens * (past + tokens) * self.heads * self.dim
    }

    /// The key head of a query head.
    pub(super) fn group(self, head: usize) -> usize {
        head * self.kv_heads / self.heads
    }
}

/// Contiguous keys and values of one key head: `past + tokens` rows, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct HeadKv<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}
