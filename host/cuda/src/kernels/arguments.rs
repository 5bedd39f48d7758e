//! Arguments of the kernels: each struct mirrors that of its source file.

use crate::device::{Address, Element};

/// Most top logprobs of a sampled token.
pub(crate) const MAX_TOP_LOGPROBS: usize = 32;

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("a size that the backend has checked")
}

impl Element for LoraMatrices {}
impl Element for SampleRow {}
impl Element for SampleOutput {}
impl Element for SamplePart {}

/// Rows of `width` values: `per_group` next to each other, groups `stride` values apart.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct StridedRows {
    pub(crate) rows: i32,
    pub(crate) width: i32,
    pub(crate) per_group: i32,
    pub(crate) stride: i32,
}

impl StridedRows {
    /// Rows without a gap.
    pub(crate) fn dense(rows: usize, width: usize) -> Self {
        Self {
            rows: int(rows),
            width: int(width),
            per_group: 1,
            stride: int(width),
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct QkvArguments {
    pub(crate) qkv: Address,
    pub(crate) raw: Address,
    pub(crate) bias: Address,
    pub(crate) q_norm: Address,
    pub(crate) k_norm: Address,
    pub(crate) angles: Address,
    pub(crate) kv: Address,
    pub(crate) block_stride: i64,
    pub(crate) slots: Address,
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) dim: i32,
    pub(crate) eps: f32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionArguments {
    pub(crate) qkv: Address,
    pub(crate) qkv_stride: i32,
    pub(crate) out: Address,
    pub(crate) kv: Address,
    pub(crate) block_stride: i64,
    pub(crate) starts: Address,
    pub(crate) past: Address,
    pub(crate) tables: Address,
    pub(crate) table_stride: i32,
    pub(crate) tiles: Address,
    pub(crate) lse: Address,
    pub(crate) lse_stride: i32,
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) dim: i32,
    pub(crate) scale: f32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionGradients {
    pub(crate) dout: Address,
    pub(crate) dqkv: Address,
    pub(crate) delta: Address,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeWorkspace {
    pub(crate) outputs: Address,
    pub(crate) sums: Address,
    pub(crate) finished: Address,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GemvArguments {
    pub(crate) w: Address,
    pub(crate) x: Address,
    pub(crate) x_stride: i32,
    pub(crate) y: Address,
    pub(crate) y_stride: i32,
    pub(crate) n: i32,
    pub(crate) k: i32,
    pub(crate) tokens: i32,
    pub(crate) gain: Address,
    pub(crate) eps: f32,
    pub(crate) accumulate: i32,
    pub(crate) f32_output: i32,
}

/// A weight in 8 or 4 bits; `quantized.cu` documents the order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizedMatrix {
    pub(crate) values: Address,
    pub(crate) scales: Address,
    pub(crate) n: i32,
    pub(crate) k: i32,
    pub(crate) units: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizedGemvArguments {
    pub(crate) w: QuantizedMatrix,
    pub(crate) x: Address,
    pub(crate) x_stride: i32,
    pub(crate) y: Address,
    pub(crate) y_stride: i32,
    pub(crate) tokens: i32,
    pub(crate) residual: i32,
}

/// The matrices of one target of one adapter, as the table on the device has them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LoraMatrices {
    pub(crate) a: Address,
    pub(crate) b: Address,
    pub(crate) rank: i32,
    pub(crate) scale: f32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoraArguments {
    pub(crate) table: Address,
    pub(crate) slots: Address,
    pub(crate) x: Address,
    pub(crate) x_stride: i32,
    pub(crate) inputs: i32,
    pub(crate) inner: Address,
    pub(crate) max_rank: i32,
    pub(crate) y: Address,
    pub(crate) y_stride: i32,
    pub(crate) targets: i32,
    pub(crate) width: i32,
    pub(crate) second: i32,
    pub(crate) third: i32,
    pub(crate) residual: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadArguments {
    pub(crate) logits: Address,
    pub(crate) stride: i32,
    pub(crate) vocab: i32,
    pub(crate) targets: Address,
    pub(crate) inverse_temperatures: Address,
    pub(crate) logprobs: Address,
    pub(crate) entropies: Address,
    pub(crate) largest: Address,
    pub(crate) log_sums: Address,
    pub(crate) first_candidates: Address,
    pub(crate) candidates: Address,
    pub(crate) candidate_logprobs: Address,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadGradients {
    pub(crate) d_logprobs: Address,
    pub(crate) d_entropies: Address,
    pub(crate) d_candidates: Address,
    pub(crate) dlogits: Address,
}

/// How a row is sampled; `sampling.cu` documents the fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleRow {
    pub(crate) mode: i32,
    pub(crate) logits: i32,
    pub(crate) seed_low: u32,
    pub(crate) seed_high: u32,
    pub(crate) position: u32,
    pub(crate) recorded: u32,
    pub(crate) temperature: f32,
    pub(crate) min_p: f32,
    pub(crate) top_p: f32,
    pub(crate) top_k: i32,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) repetition_penalty: f32,
    pub(crate) top_logprobs: i32,
    pub(crate) constrained: i32,
    pub(crate) adjusts: i32,
    pub(crate) biases: i32,
    pub(crate) bias_count: i32,
    pub(crate) penalties: i32,
    pub(crate) penalty_count: i32,
    pub(crate) suppressed: i32,
    pub(crate) suppressed_count: i32,
    pub(crate) bitmask: i32,
    pub(crate) bitmask_words: i32,
}

pub(crate) const MODE_SAMPLE: i32 = 0;
pub(crate) const MODE_GREEDY: i32 = 1;
pub(crate) const MODE_RECORDED: i32 = 2;

/// A sampled token; `sampling.cu` documents the fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleOutput {
    pub(crate) status: i32,
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    pub(crate) full_logprob: f32,
    pub(crate) model_logprob: f32,
    pub(crate) forced: i32,
    pub(crate) bad_id: u32,
    pub(crate) bad_logit: f32,
    pub(crate) top_ids: [u32; MAX_TOP_LOGPROBS],
    pub(crate) top_logprobs: [f32; MAX_TOP_LOGPROBS],
}

pub(crate) const STATUS_NOT_FINITE: i32 = 1;
pub(crate) const STATUS_NO_TOKEN: i32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleArguments {
    pub(crate) logits: Address,
    pub(crate) stride: i32,
    pub(crate) vocab: i32,
    pub(crate) rows: Address,
    pub(crate) words: Address,
    pub(crate) adjusted: Address,
    pub(crate) saved: Address,
    pub(crate) saved_stride: i32,
    pub(crate) outputs: Address,
    pub(crate) parts: Address,
    pub(crate) part_count: i32,
    pub(crate) keys: Address,
    pub(crate) chunks: Address,
}

/// What one of the blocks that share a row has found; `sampling.cu` documents the fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SamplePart {
    pub(crate) largest: f32,
    pub(crate) id: u32,
    pub(crate) bad_id: u32,
    pub(crate) open: u32,
    pub(crate) sum: u64,
    pub(crate) sum_at_one: u64,
}

/// Threads of the blocks that share a row.
pub(crate) const SAMPLE_PART_THREADS: usize = 256;
/// Chunks of a row whose sums the sampler has.
pub(crate) const SAMPLE_CHUNKS: usize = 256;

/// How many blocks share a row, so that all multiprocessors have work: a power of two up to 32.
pub(crate) fn sample_parts(processors: usize, rows: usize) -> usize {
    let wanted = (2 * processors / rows.max(1)).clamp(1, 32);
    1 << wanted.ilog2()
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamWArguments {
    pub(crate) parameters: Address,
    pub(crate) gradients: Address,
    pub(crate) exp_avg: Address,
    pub(crate) exp_avg_sq: Address,
    pub(crate) copy: Address,
    pub(crate) count: i64,
    pub(crate) decayed: i64,
    pub(crate) rate: f32,
    pub(crate) beta1: f32,
    pub(crate) one_minus_beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) one_minus_beta2: f32,
    pub(crate) bias_correction1: f32,
    pub(crate) bias_correction2: f32,
    pub(crate) epsilon: f32,
    pub(crate) decay_factor: f32,
    pub(crate) scale: f32,
}
