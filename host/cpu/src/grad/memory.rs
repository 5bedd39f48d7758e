//! How much memory a forward and backward pass takes. Allocates nothing; the functions beside the allocations say how
//! large they are.

use clawhost_engine::TrainLimits;
use clawhost_model::ModelConfig;

use super::packing::MICRO_BATCH_TOKENS;
use crate::model::LayerValues;
use crate::ops::head::{self, Position};
use crate::ops::{attention, streamed_head};

const F32: usize = size_of::<f32>();

/// Number of last layers whose activations a pass over this many tokens stores.
pub(super) fn stored_layers(config: &ModelConfig, tokens: usize, limits: TrainLimits) -> usize {
    let layer = LayerValues::new(config).stored * F32 * tokens;
    (limits.activation_memory / layer.max(1)).min(config.num_hidden_layers)
}

/// The most memory that a pass takes, in bytes, besides weights and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassMemory {
    /// Stored activations, within [`TrainLimits::activation_memory`].
    pub stored: usize,
    /// The input of each layer, the activations of one layer of the micro-batches that run in parallel, and logits.
    pub working: usize,
}

impl PassMemory {
    /// A pass over `tokens` packed tokens, in sequences of at most `longest`, with adapters of at most `rank`.
    pub(crate) fn new(
        config: &ModelConfig,
        (tokens, longest): (usize, usize),
        (rank, threads): (usize, usize),
        limits: TrainLimits,
    ) -> Self {
        let LayerValues { stored, restored } = LayerValues::new(config);
        let (h, f, q) = (
            config.hidden_size,
            config.intermediate_size,
            config.query_width(),
        );
        let qkv = q + 2 * config.key_width();
        // The pass that ends in the longest micro-batches has the fewest of them; no more than all tokens run at once.
        let micro_batch = (MICRO_BATCH_TOKENS - 1 + longest).min(tokens);
        let parallel = threads.clamp(1, tokens.div_ceil(MICRO_BATCH_TOKENS).max(1));
        let running = tokens.min(parallel * micro_batch);
        // The input of each layer, and what is stored around the head: its input before and after the norm, and the
        // gradients of the scores.
        let streams = (config.num_hidden_layers * h + 3 * h) * tokens;
        // The buffers of one layer, and the residual stream, which grows token by token and so may hold twice its size.
        let forward = stored + restored + rank + 2 * h;
        // The scratch of the backward pass, the gradient of the residual stream, and copies of rows that the last layer
        // moves.
        let backward = f + h + q + qkv + 2 * rank + h + q.max(h);
        let layer = forward + backward;
        let logits = head::scratch_values(micro_batch, config.vocab_size)
            .max(streamed_head::scratch_values(micro_batch));
        // The angles of the rotation, and what is known of each scored position.
        let positions = tokens * (config.head_dim * F32 + size_of::<Position>());
        let scores = attention::scratch_values(longest.min(tokens));
        Self {
            stored: stored_layers(config, tokens, limits) * stored * F32 * tokens,
            working: (streams + layer * running + logits.max(scores) * parallel) * F32 + positions,
        }
    }
}
