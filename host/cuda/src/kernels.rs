//! The kernels with their argument types and grids; `kernels/*.cu` has the sources.
//!
//! Addresses come from the layouts of `weights.rs`, `adapters.rs` and `activations.rs`, which allocate what the kernels
//! read and write.
#![allow(
    unsafe_code,
    reason = "launches kernels; each argument struct mirrors that of its source file"
)]

mod arguments;

use std::ffi::c_void;

use clawhost_engine::backend::BLOCK_TOKENS;
use clawhost_model::QuantizedFormat;

pub(crate) use arguments::*;

use crate::device::{Address, Graph, Launch, Precision, Product, Result, Stream};

/// Threads of the element-wise kernels.
const THREADS: usize = 256;
/// Warps per block where a warp has a head or a row of its own.
const WARPS: usize = 4;
/// Threads per block of the kernels that go over the vocabulary.
const ROW_THREADS: usize = 1024;
/// Largest head dimension of the general attention kernels.
pub(crate) const MAX_HEAD_DIM: usize = 256;
/// Most rows of a GEMV.
pub(crate) const MAX_GEMV_ROWS: usize = 16;
/// Most rows that a GEMV normalizes itself, and their values: every block does so.
pub(crate) const MAX_NORMED_ROWS: usize = 2;
pub(crate) const MAX_NORMED_VALUES: usize = 8192;
/// Most candidates per position that the device finds.
pub(crate) const MAX_TOP: usize = 1024;
/// Queries of a tile of prefill attention.
pub(crate) const PREFILL_TILE: usize = 128;
/// Queries or keys of a tile of the backward pass of attention.
pub(crate) const BACKWARD_TILE: usize = 64;

const _: () = assert!(
    BLOCK_TOKENS == 32,
    "common.cuh has the same number of tokens per block"
);

/// Pointers to the arguments of a kernel. Used as an argument itself, so that the values live until the launch returns.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        &mut [$(std::ptr::from_ref(&$value).cast_mut().cast::<c_void>()),*]
    };
}

macro_rules! typed {
    ($precision:expr, $name:literal) => {
        match $precision {
            Precision::F32 => concat!($name, "_f32"),
            Precision::Bf16 => concat!($name, "_bf16"),
        }
    };
}

/// Whether the tensor-core attention kernels have this head dimension and precision.
pub(crate) fn has_tile_attention(precision: Precision, dim: usize) -> bool {
    precision == Precision::Bf16 && matches!(dim, 64 | 128)
}

/// Fewest tokens of a part of the context in [`Stream::attention_decode`]: its 8 warps take two steps of 16 tokens each.
pub(crate) const DECODE_SPLIT: usize = 256;

/// Most query heads per key head of [`Stream::attention_decode`].
const MAX_DECODE_GROUP: usize = 16;

/// Whether the decode kernel runs this shape.
pub(crate) fn has_decode_attention(
    precision: Precision,
    dim: usize,
    heads: usize,
    kv_heads: usize,
) -> bool {
    has_tile_attention(precision, dim) && heads / kv_heads <= MAX_DECODE_GROUP
}

/// Whether kernels that wait themselves for those ahead of them start early (programmatic dependent launch).
const STARTS_EARLY: bool = true;

/// Whether a kernel waits itself for those ahead of it: the kernels of decoding steps, which are short.
fn waits(kernel: &str) -> bool {
    let names = [
        "gemv_",
        "quantized_gemv_",
        "attention_decode_",
        "finish_qkv_bf16",
        "finish_qkv_parts_bf16",
        "rms_norm_bf16",
        "swiglu_bf16",
        "lora_",
    ];
    names.iter().any(|name| kernel.starts_with(name))
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("a size that the backend has checked")
}

/// Threads for a row of `width` values in packs of 16 bytes.
fn row_threads(width: usize, precision: Precision) -> usize {
    (width * precision.bytes() / 16)
        .next_multiple_of(32)
        .clamp(32, 512)
}

/// Values that a lane of the kernels over heads reads at once, and their blocks for this many heads.
fn head_parts(dim: usize, precision: Precision, heads: usize) -> (usize, usize) {
    let (half, pack) = (dim / 2, 16 / precision.bytes());
    let values = if half.is_multiple_of(pack) { pack } else { 1 };
    let lanes = (half / values).next_power_of_two().min(32);
    (values, (heads * lanes).div_ceil(THREADS))
}

impl Stream {
    fn run(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: usize,
        shared: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let launch = Launch {
            kernel,
            grid,
            threads,
            shared,
            overlaps: STARTS_EARLY && waits(kernel),
        };
        // SAFETY: the wrappers below give each kernel the arguments that its source declares, and addresses of the
        // layouts that this module names.
        unsafe { self.launch(launch, arguments) }
    }

    /// A launch of blocks in one dimension, without shared memory.
    fn run_blocks(
        &self,
        kernel: &'static str,
        blocks: usize,
        threads: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.run(kernel, [blocks, 1, 1], threads, 0, arguments)
    }

    /// `x` is the residual stream, in f32.
    pub(crate) fn rms_norm(
        &self,
        precision: Precision,
        (x, gain, y): (Address, Address, Address),
        (rows, width): (usize, usize),
        eps: f32,
    ) -> Result<()> {
        let kernel = typed!(precision, "rms_norm");
        let threads = row_threads(width, precision);
        self.run_blocks(kernel, rows, threads, args![x, gain, y, int(width), eps])
    }

    /// `dx (+)=` the gradient of the input `x`, the residual stream; `scales` gets the inverse root mean squares unless it is null.
    #[allow(clippy::too_many_arguments, reason = "operands of one operation")]
    pub(crate) fn rms_norm_backward(
        &self,
        precision: Precision,
        (x, gain, dy, dx): (Address, Address, Address, Address),
        scales: Address,
        (rows, width): (usize, usize),
        eps: f32,
        accumulate: bool,
    ) -> Result<()> {
        let kernel = typed!(precision, "rms_norm_backward");
        let threads = row_threads(width, precision);
        let accumulate = i32::from(accumulate);
        self.run_blocks(
            kernel,
            rows,
            threads,
            args![x, gain, dy, dx, scales, int(width), eps, accumulate],
        )
    }

    /// `dgain +=` the gradient of a norm's gain.
    pub(crate) fn gain_backward(
        &self,
        precision: Precision,
        (x, dy, scales, dgain): (Address, Address, Address, Address),
        rows: StridedRows,
        scale_stride: usize,
    ) -> Result<()> {
        let kernel = typed!(precision, "gain_backward");
        let blocks = (rows.width as usize).div_ceil(32);
        self.run_blocks(
            kernel,
            blocks,
            THREADS,
            args![x, dy, scales, dgain, rows, int(scale_stride)],
        )
    }

    /// As above where `x` is the residual stream.
    pub(crate) fn residual_gain_backward(
        &self,
        precision: Precision,
        (x, dy, scales, dgain): (Address, Address, Address, Address),
        rows: StridedRows,
    ) -> Result<()> {
        let kernel = match precision {
            Precision::F32 => "gain_backward_f32",
            Precision::Bf16 => "gain_backward_residual_bf16",
        };
        let blocks = (rows.width as usize).div_ceil(32);
        let arguments = args![x, dy, scales, dgain, rows, 1i32];
        self.run_blocks(kernel, blocks, THREADS, arguments)
    }

    pub(crate) fn rope_angles(
        &self,
        (positions, frequencies, angles): (Address, Address, Address),
        scale: f32,
        (tokens, half): (usize, usize),
    ) -> Result<()> {
        let blocks = (tokens * half).div_ceil(THREADS);
        let (tokens, half) = (int(tokens), int(half));
        let arguments = args![positions, frequencies, scale, angles, tokens, half];
        self.run_blocks("rope_angles", blocks, THREADS, arguments)
    }

    pub(crate) fn finish_qkv(
        &self,
        precision: Precision,
        a: QkvArguments,
        tokens: usize,
    ) -> Result<()> {
        let heads = (a.heads + 2 * a.kv_heads) as usize;
        let (values, blocks) = head_parts(a.dim as usize, precision, heads * tokens);
        let kernel = match values {
            1 => typed!(precision, "finish_qkv"),
            _ => typed!(precision, "finish_qkv_parts"),
        };
        self.run_blocks(kernel, blocks, THREADS, args![a, int(tokens)])
    }

    /// `scales` and `rotated` are null, or get what the gradients of the heads' norms need.
    pub(crate) fn finish_qkv_backward(
        &self,
        precision: Precision,
        a: QkvArguments,
        (scales, rotated): (Address, Address),
        tokens: usize,
    ) -> Result<()> {
        let heads = (a.heads + a.kv_heads) as usize;
        let (values, blocks) = head_parts(a.dim as usize, precision, heads * tokens);
        let kernel = match values {
            1 => typed!(precision, "finish_qkv_backward"),
            _ => typed!(precision, "finish_qkv_backward_parts"),
        };
        self.run_blocks(
            kernel,
            blocks,
            THREADS,
            args![a, scales, rotated, int(tokens)],
        )
    }

    /// `x` is the residual stream, in f32.
    pub(crate) fn embed(
        &self,
        precision: Precision,
        (embedding, tokens, x): (Address, Address, Address),
        (rows, width): (usize, usize),
    ) -> Result<()> {
        let kernel = typed!(precision, "embed");
        let threads = row_threads(width, precision);
        self.run_blocks(
            kernel,
            rows,
            threads,
            args![embedding, tokens, x, int(width)],
        )
    }

    pub(crate) fn embed_backward(
        &self,
        precision: Precision,
        (dx, tokens, dembedding): (Address, Address, Address),
        (rows, width): (usize, usize),
    ) -> Result<()> {
        let kernel = typed!(precision, "embed_backward");
        let blocks = width.div_ceil(64);
        self.run_blocks(
            kernel,
            blocks,
            64,
            args![dx, tokens, dembedding, int(rows), int(width)],
        )
    }

    /// `to[i] = from[rows[i]]`.
    pub(crate) fn gather_rows(
        &self,
        precision: Precision,
        (from, rows, to): (Address, Address, Address),
        (count, width): (usize, usize),
    ) -> Result<()> {
        let kernel = typed!(precision, "gather_rows");
        let threads = row_threads(width, precision);
        self.run_blocks(kernel, count, threads, args![from, rows, to, int(width)])
    }

    /// `to[rows[i]] = from[i]`.
    pub(crate) fn scatter_rows(
        &self,
        precision: Precision,
        (from, rows, to): (Address, Address, Address),
        (count, width): (usize, usize),
    ) -> Result<()> {
        let kernel = typed!(precision, "scatter_rows");
        let threads = row_threads(width, precision);
        self.run_blocks(kernel, count, threads, args![from, rows, to, int(width)])
    }

    pub(crate) fn add_bias(
        &self,
        precision: Precision,
        (y, bias): (Address, Address),
        (rows, width): (usize, usize),
    ) -> Result<()> {
        let kernel = typed!(precision, "add_bias");
        self.run_blocks(kernel, rows, THREADS, args![y, bias, int(width)])
    }

    pub(crate) fn bias_backward(
        &self,
        precision: Precision,
        (dy, dbias): (Address, Address),
        (rows, width, stride): (usize, usize, usize),
    ) -> Result<()> {
        let kernel = typed!(precision, "bias_backward");
        let blocks = width.div_ceil(32);
        self.run_blocks(
            kernel,
            blocks,
            THREADS,
            args![dy, dbias, int(rows), int(width), int(stride)],
        )
    }

    pub(crate) fn swiglu(
        &self,
        precision: Precision,
        (gate_up, y): (Address, Address),
        (rows, width): (usize, usize),
    ) -> Result<()> {
        let packs = rows * width * precision.bytes() / 16;
        let kernel = typed!(precision, "swiglu");
        let blocks = packs.div_ceil(THREADS);
        self.run_blocks(
            kernel,
            blocks,
            THREADS,
            args![gate_up, y, int(width), packs as i64],
        )
    }

    pub(crate) fn swiglu_backward(
        &self,
        precision: Precision,
        (gate_up, dy): (Address, Address),
        (rows, width): (usize, usize),
    ) -> Result<()> {
        let packs = rows * width * precision.bytes() / 16;
        let kernel = typed!(precision, "swiglu_backward");
        let blocks = packs.div_ceil(THREADS);
        self.run_blocks(
            kernel,
            blocks,
            THREADS,
            args![gate_up, dy, int(width), packs as i64],
        )
    }

    /// Attention of tiles of [`PREFILL_TILE`] queries, from the KV cache if `a.kv` is not null.
    pub(crate) fn attention_prefill(&self, a: AttentionArguments, tiles: usize) -> Result<()> {
        let kernel = match (a.kv == Address::NULL, a.dim) {
            (true, 64) => "attention_prefill_packed_64",
            (true, _) => "attention_prefill_packed_128",
            (false, 64) => "attention_prefill_paged_64",
            (false, _) => "attention_prefill_paged_128",
        };
        let shared = (PREFILL_TILE + 4 * 64) * a.dim as usize * 2;
        let grid = [a.heads as usize, tiles, 1];
        self.run(kernel, grid, 128, shared, args![a])
    }

    /// Attention of the only query of each sequence of `a.tiles`, in at most `splits` parts of the context.
    pub(crate) fn attention_decode(
        &self,
        a: AttentionArguments,
        workspace: DecodeWorkspace,
        (tiles, splits): (usize, usize),
    ) -> Result<()> {
        let kernel = match a.dim {
            64 => "attention_decode_64",
            _ => "attention_decode_128",
        };
        let grid = [a.kv_heads as usize, tiles, splits];
        let (warps, count) = (8, (a.heads / a.kv_heads) as usize);
        let shared = warps * count * a.dim as usize * 4;
        self.run(kernel, grid, warps * 32, shared, args![a, workspace])
    }

    /// Attention of single queries, of any shape.
    pub(crate) fn attention_general(
        &self,
        precision: Precision,
        a: AttentionArguments,
        queries: usize,
    ) -> Result<()> {
        let kernel = if a.kv == Address::NULL {
            typed!(precision, "attention_general_packed")
        } else {
            typed!(precision, "attention_general_paged")
        };
        let grid = [queries, a.heads as usize, 1];
        self.run(kernel, grid, 128, 0, args![a])
    }

    pub(crate) fn attention_delta(
        &self,
        precision: Precision,
        a: AttentionArguments,
        g: AttentionGradients,
        tokens: usize,
    ) -> Result<()> {
        let grid = [(a.heads as usize).div_ceil(WARPS), tokens, 1];
        let kernel = typed!(precision, "attention_delta");
        self.run(kernel, grid, WARPS * 32, 0, args![a, g])
    }

    /// The gradient of attention over tiles of [`BACKWARD_TILE`] tokens: of keys those in `a.tiles`, of queries `queries`.
    pub(crate) fn attention_backward(
        &self,
        a: AttentionArguments,
        g: AttentionGradients,
        (queries, tiles): (Address, usize),
    ) -> Result<()> {
        let (dkdv, dq) = match a.dim {
            64 => ("attention_dkdv_64", "attention_dq_64"),
            _ => ("attention_dkdv_128", "attention_dq_128"),
        };
        let shared = 6 * BACKWARD_TILE * a.dim as usize * 2;
        let statistics = 4 * BACKWARD_TILE * 4;
        let grid = [a.kv_heads as usize, tiles, 1];
        self.run(dkdv, grid, 128, shared + statistics, args![a, g])?;
        let a = AttentionArguments {
            tiles: queries,
            ..a
        };
        let grid = [a.heads as usize, tiles, 1];
        self.run(dq, grid, 128, shared, args![a, g])
    }

    /// As above for any shape; a tile is one token.
    pub(crate) fn attention_general_backward(
        &self,
        precision: Precision,
        a: AttentionArguments,
        g: AttentionGradients,
        tokens: usize,
    ) -> Result<()> {
        let keys = typed!(precision, "attention_general_dkdv");
        let queries = typed!(precision, "attention_general_dq");
        let grid = [tokens, a.kv_heads as usize, 1];
        self.run(keys, grid, 128, 0, args![a, g])?;
        let grid = [tokens, a.heads as usize, 1];
        self.run(queries, grid, 128, 0, args![a, g])
    }

    /// The product of at most [`MAX_GEMV_ROWS`] bf16 rows, or of the norm of at most [`MAX_NORMED_ROWS`] rows of the residual
    /// stream, with a weight; `gated` applies silu(gate) * up.
    pub(crate) fn gemv(&self, a: GemvArguments, gated: bool) -> Result<()> {
        let tokens = a.tokens as usize;
        let normed = a.gain != Address::NULL;
        let columns = if tokens <= 8 { 8 } else { 16 };
        let kernel = match (normed, gated, columns) {
            (false, false, 8) => "gemv_8",
            (false, false, _) => "gemv_16",
            (false, true, 8) => "gemv_gated_8",
            (false, true, _) => "gemv_gated_16",
            (true, false, _) => "gemv_normed",
            (true, true, _) => "gemv_gated_normed",
        };
        let blocks = (a.n as usize).div_ceil(if gated { 8 } else { 16 });
        let (slab, stages) = (64, 4);
        let warps = (a.k as usize).div_ceil(slab).clamp(1, 8);
        let rows = if normed { tokens * a.k as usize * 2 } else { 0 };
        let shared = warps * (stages * slab * 16 * 2 + columns * 16 * 4) + rows;
        self.run(kernel, [blocks, 1, 1], warps * 32, shared, args![a])
    }

    /// The product of at most [`MAX_GEMV_ROWS`] bf16 rows with a quantized weight.
    pub(crate) fn quantized_gemv(
        &self,
        format: QuantizedFormat,
        a: QuantizedGemvArguments,
    ) -> Result<()> {
        let columns = if a.tokens <= 8 { 8 } else { 16 };
        let kernel = match (format, columns) {
            (QuantizedFormat::Int4, 8) => "quantized_gemv_int4_8",
            (QuantizedFormat::Int4, _) => "quantized_gemv_int4_16",
            (QuantizedFormat::Int8, 8) => "quantized_gemv_int8_8",
            (QuantizedFormat::Int8, _) => "quantized_gemv_int8_16",
            (QuantizedFormat::Bf16, _) => unreachable!("it is a format of host memory"),
        };
        let blocks = (a.w.n as usize).div_ceil(16);
        // As for `gemv`; a warp has two units at a time.
        let most = if blocks >= 4 * self.driver.processors() {
            8
        } else {
            16
        };
        let warps = (a.w.units as usize).div_ceil(2).clamp(1, most);
        let shared = warps * columns * 16 * 4;
        self.run(kernel, [blocks, 1, 1], warps * 32, shared, args![a])
    }

    /// `to [n, k]` = a quantized weight.
    pub(crate) fn dequantize(
        &self,
        precision: Precision,
        format: QuantizedFormat,
        w: QuantizedMatrix,
        to: Address,
    ) -> Result<()> {
        let (kernel, unit_threads) = match format {
            QuantizedFormat::Int4 => (typed!(precision, "dequantize_int4"), 16),
            QuantizedFormat::Int8 => (typed!(precision, "dequantize_int8"), 8),
            QuantizedFormat::Bf16 => unreachable!("it is a format of host memory"),
        };
        let threads = w.n as usize * w.units as usize * unit_threads;
        self.run_blocks(kernel, threads.div_ceil(THREADS), THREADS, args![w, to])
    }

    pub(crate) fn lora_shrink(
        &self,
        precision: Precision,
        a: LoraArguments,
        tokens: usize,
    ) -> Result<()> {
        let grid = [
            (a.max_rank as usize).div_ceil(WARPS),
            a.targets as usize,
            tokens,
        ];
        let kernel = typed!(precision, "lora_shrink");
        self.run(kernel, grid, WARPS * 32, 0, args![a])
    }

    pub(crate) fn lora_expand(
        &self,
        precision: Precision,
        a: LoraArguments,
        tokens: usize,
    ) -> Result<()> {
        let grid = [(a.width as usize).div_ceil(128), tokens, 1];
        let kernel = typed!(precision, "lora_expand");
        self.run(kernel, grid, 128, 0, args![a])
    }

    pub(crate) fn head_scores(&self, a: HeadArguments, positions: usize) -> Result<()> {
        self.run_blocks("head_scores", positions, 512, args![a])
    }

    pub(crate) fn head_candidates(&self, a: HeadArguments, positions: usize) -> Result<()> {
        self.run_blocks("head_candidates", positions, 64, args![a])
    }

    /// Finds at most [`MAX_TOP`] candidates per position.
    pub(crate) fn head_top(
        &self,
        a: HeadArguments,
        find_top: Address,
        positions: usize,
    ) -> Result<()> {
        self.run_blocks("head_top", positions, ROW_THREADS, args![a, find_top])
    }

    pub(crate) fn head_backward(
        &self,
        precision: Precision,
        a: HeadArguments,
        g: HeadGradients,
        positions: usize,
    ) -> Result<()> {
        let kernel = typed!(precision, "head_backward");
        self.run_blocks(kernel, positions, 512, args![a, g])
    }

    pub(crate) fn sample(&self, a: SampleArguments, rows: usize) -> Result<()> {
        let grid = [a.part_count as usize, rows, 1];
        for kernel in ["sample_maxima", "sample_sums"] {
            self.run(kernel, grid, SAMPLE_PART_THREADS, 0, args![a])?;
        }
        self.run_blocks("sample", rows, ROW_THREADS, args![a])
    }

    pub(crate) fn adamw(&self, a: AdamWArguments) -> Result<()> {
        let blocks = (a.count as usize).div_ceil(THREADS);
        let blocks = blocks.min(self.driver.processors() * 8);
        self.run_blocks("adamw", blocks, THREADS, args![a])
    }

    /// Number of partial sums of [`Stream::squared_norm`].
    pub(crate) const NORM_PARTS: usize = 256;

    /// `sum` = the sum of squares; `partials` has [`Stream::NORM_PARTS`] values.
    pub(crate) fn squared_norm(
        &self,
        (values, partials, sum): (Address, Address, Address),
        count: usize,
    ) -> Result<()> {
        let parts = Self::NORM_PARTS;
        self.run_blocks(
            "squared_norm",
            parts,
            THREADS,
            args![values, count as i64, partials],
        )?;
        self.run_blocks("sum_partials", 1, 1, args![partials, int(parts), sum])
    }
}

impl Stream {
    /// A matrix product.
    pub(crate) fn product(&self, product: &Product) -> Result<()> {
        // SAFETY: the callers take the addresses and strides of all operands from the layouts that this module names.
        unsafe { self.multiply(product) }
    }

    /// Copies rows or blocks.
    pub(crate) fn copy_bytes(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copy(from, to, bytes) }
    }

    /// Runs a graph whose buffers the caller keeps.
    pub(crate) fn run_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: graphs are dropped before the buffers that they use are replaced.
        unsafe { self.replay(graph) }
    }
}
