//! Products of a few rows with a weight, as in decoding: each weight is read from memory once for all rows.
//!
//! Every result is the sum of the same products in the same order, independent of the other rows: [`PARTIAL_SUMS`]
//! partial sums, of which number c takes the inputs c, c + 8, c + 16 and so on, added up as a tree. A single row keeps
//! its partial sums in the lanes of one vector; with many rows, each row has its own lane and each partial sum is a
//! vector. So a sequence gets the same bits alone and in a batch.

mod bf16;

use std::ops::Range;

use clawhost_model::QuantizedWeight;
use pulp::{Simd, WithSimd};

use bf16::Bf16InLanes;
pub(super) use bf16::restore_bf16_rows;

/// Partial sums per result.
const PARTIAL_SUMS: usize = 8;

/// Rows per block, one per lane.
pub(super) const BLOCK_ROWS: usize = 16;

/// Outputs whose results are collected before they are passed to `store`.
pub(super) const TILE_OUTPUTS: usize = 12;

/// Up to this many rows are multiplied one by one (inputs across the lanes) instead of as a block (rows across the
/// lanes).
const MAX_SINGLE_ROWS: usize = 8;

/// One input value of each row of a block.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct InputVector([f32; BLOCK_ROWS]);

/// Input rows, laid out for the multiplication.
pub(super) struct BatchRows<'a> {
    x: &'a [f32],
    stride: usize,
    rows: usize,
    inner: usize,
    /// `[blocks][inner]`: the blocks with one row per lane.
    blocks: &'a [InputVector],
}

impl<'a> BatchRows<'a> {
    /// Lays out `rows` rows of `inner` values, `stride` apart.
    pub(super) fn new(
        (x, stride): (&'a [f32], usize),
        (rows, inner): (usize, usize),
        scratch: &'a mut Vec<InputVector>,
    ) -> Self {
        scratch.clear();
        let mut first = 0;
        while rows - first > MAX_SINGLE_ROWS {
            let count = BLOCK_ROWS.min(rows - first);
            let start = scratch.len();
            scratch.resize(start + inner, InputVector([0.0; BLOCK_ROWS]));
            let lanes = &mut scratch[start..];
            for r in 0..count {
                let row = &x[(first + r) * stride..][..inner];
                for (lane, value) in lanes.iter_mut().zip(row) {
                    lane.0[r] = *value;
                }
            }
            first += count;
        }
        Self {
            x,
            stride,
            rows,
            inner,
            blocks: scratch,
        }
    }

    /// Multiplies with the `outputs` rows of `w`, `w_stride` apart, and passes the results to `store` tile by tile:
    /// first output, first row, number of rows, and the results.
    pub(super) fn multiply(
        &self,
        w: &[f32],
        w_stride: usize,
        outputs: Range<usize>,
        mut store: impl FnMut(usize, usize, usize, &Tile),
    ) {
        let arch = pulp::Arch::new();
        let mut tile = [[0.0; BLOCK_ROWS]; TILE_OUTPUTS];
        for start in outputs.clone().step_by(TILE_OUTPUTS) {
            let count = TILE_OUTPUTS.min(outputs.end - start);
            let weights = Weights {
                w: &w[start * w_stride..],
                stride: w_stride,
                inner: self.inner,
            };
            let tile_rows = &mut tile[..count];
            let mut first = 0;
            for block in self.blocks.chunks_exact(self.inner.max(1)) {
                let row_count = BLOCK_ROWS.min(self.rows - first);
                arch.dispatch(RowsInLanes {
                    block,
                    row_count,
                    weights,
                    tile: tile_rows,
                });
                store(start, first, row_count, tile_rows);
                first += row_count;
            }
            if first < self.rows {
                let row_count = self.rows - first;
                let rows = (first, row_count);
                dispatch_8_lanes(InputsInLanes {
                    rows: self,
                    range: rows,
                    weights,
                    tile: tile_rows,
                });
                store(start, first, row_count, tile_rows);
            }
        }
    }

    /// Whether [`multiply_bf16`](Self::multiply_bf16) multiplies these rows on this processor.
    pub(super) fn takes_bf16(&self) -> bool {
        self.rows <= MAX_SINGLE_ROWS && has_8_lanes()
    }

    /// As [`multiply`](Self::multiply), with a weight in bf16 whose values are restored in registers. The results are those
    /// of the restored weight, to the bit.
    ///
    /// # Panics
    /// When these rows are not [taken](Self::takes_bf16).
    pub(super) fn multiply_bf16(
        &self,
        weight: &QuantizedWeight,
        outputs: Range<usize>,
        mut store: impl FnMut(usize, usize, usize, &Tile),
    ) {
        assert!(self.takes_bf16() && weight.shape().1 == self.inner);
        let row_bytes = weight.row_bytes();
        let mut tile = [[0.0; BLOCK_ROWS]; TILE_OUTPUTS];
        for start in outputs.clone().step_by(TILE_OUTPUTS) {
            let count = TILE_OUTPUTS.min(outputs.end - start);
            dispatch_8_lanes(Bf16InLanes {
                rows: self,
                blocks: &weight.blocks()[start * row_bytes..][..count * row_bytes],
                row_bytes,
                tile: &mut tile[..count],
            });
            store(start, 0, self.rows, &tile[..count]);
        }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.stride..][..self.inner]
    }
}

/// Results: one value per row of a block for each output.
pub(super) type Tile = [[f32; BLOCK_ROWS]];

/// The weights of a tile's outputs.
#[derive(Clone, Copy)]
struct Weights<'a> {
    w: &'a [f32],
    stride: usize,
    inner: usize,
}

impl<'a> Weights<'a> {
    #[inline(always)]
    fn row(&self, output: usize) -> &'a [f32] {
        &self.w[output * self.stride..][..self.inner]
    }
}

/// Runs `op` with vectors of at most 8 lanes.
fn dispatch_8_lanes<Op: WithSimd>(op: Op) -> Op::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return Simd::vectorize(simd, op);
    }
    pulp::Arch::new().dispatch(op)
}

/// Whether [`dispatch_8_lanes`] runs with 8 lanes.
fn has_8_lanes() -> bool {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    dispatch_8_lanes(Lanes) == PARTIAL_SUMS
}

/// Multiplies a block of rows, one row per lane.
struct RowsInLanes<'a> {
    block: &'a [InputVector],
    row_count: usize,
    weights: Weights<'a>,
    tile: &'a mut Tile,
}

impl WithSimd for RowsInLanes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            block,
            row_count,
            weights,
            tile,
        } = self;
        for part in 0..row_count.div_ceil(S::F32_LANES) {
            let mut at = 0;
            // With 32 registers the partial sums of three outputs fit, with 16 those of one.
            if S::F32_LANES >= BLOCK_ROWS {
                while at + 3 <= tile.len() {
                    let w = [weights.row(at), weights.row(at + 1), weights.row(at + 2)];
                    rows_in_lanes::<S, 3>(simd, block, part, w, &mut tile[at..at + 3]);
                    at += 3;
                }
            }
            for at in at..tile.len() {
                rows_in_lanes::<S, 1>(simd, block, part, [weights.row(at)], &mut tile[at..=at]);
            }
        }
    }
}

/// Multiplies the rows of one vector with `N` outputs.
#[inline(always)]
fn rows_in_lanes<S: Simd, const N: usize>(
    simd: S,
    block: &[InputVector],
    part: usize,
    w: [&[f32]; N],
    tile: &mut Tile,
) {
    let mut sums = [[simd.splat_f32s(0.0); PARTIAL_SUMS]; N];
    let (main, rest) = block.as_chunks::<PARTIAL_SUMS>();
    let mut at = 0;
    for lanes in main {
        for c in 0..PARTIAL_SUMS {
            let x = S::as_simd_f32s(&lanes[c].0).0[part];
            for n in 0..N {
                let factor = simd.splat_f32s(w[n][at + c]);
                sums[n][c] = simd.mul_add_f32s(factor, x, sums[n][c]);
            }
        }
        at += PARTIAL_SUMS;
    }
    for (c, lane) in rest.iter().enumerate() {
        let x = S::as_simd_f32s(&lane.0).0[part];
        for n in 0..N {
            let factor = simd.splat_f32s(w[n][at + c]);
            sums[n][c] = simd.mul_add_f32s(factor, x, sums[n][c]);
        }
    }
    for n in 0..N {
        let [a, b, c, d, e, f, g, h] = sums[n];
        let even = simd.add_f32s(simd.add_f32s(a, e), simd.add_f32s(c, g));
        let odd = simd.add_f32s(simd.add_f32s(b, f), simd.add_f32s(d, h));
        S::as_mut_simd_f32s(&mut tile[n]).0[part] = simd.add_f32s(even, odd);
    }
}

/// Multiplies single rows, with consecutive inputs in the lanes.
struct InputsInLanes<'a> {
    rows: &'a BatchRows<'a>,
    /// First row and number of rows.
    range: (usize, usize),
    weights: Weights<'a>,
    tile: &'a mut Tile,
}

impl WithSimd for InputsInLanes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            rows,
            range: (first, count),
            weights,
            tile,
        } = self;
        let mut at = 0;
        while at + 4 <= tile.len() {
            let w = [
                weights.row(at),
                weights.row(at + 1),
                weights.row(at + 2),
                weights.row(at + 3),
            ];
            let tile = &mut tile[at..at + 4];
            let mut row = 0;
            while row + 2 <= count {
                let x = [rows.row(first + row), rows.row(first + row + 1)];
                inputs_in_lanes::<S, 2, 4>(simd, x, w, tile, row);
                row += 2;
            }
            if row < count {
                inputs_in_lanes::<S, 1, 4>(simd, [rows.row(first + row)], w, tile, row);
            }
            at += 4;
        }
        for at in at..tile.len() {
            for row in 0..count {
                let (x, w) = ([rows.row(first + row)], [weights.row(at)]);
                inputs_in_lanes::<S, 1, 1>(simd, x, w, &mut tile[at..=at], row);
            }
        }
    }
}

/// Multiplies `R` rows with `N` outputs.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the indices are of registers: an iterator would walk over the wrong dimension"
)]
fn inputs_in_lanes<S: Simd, const R: usize, const N: usize>(
    simd: S,
    x: [&[f32]; R],
    w: [&[f32]; N],
    tile: &mut Tile,
    row: usize,
) {
    // The partial sums of one result: [`PARTIAL_SUMS`] values in one or more vectors.
    let vectors = PARTIAL_SUMS / S::F32_LANES;
    let mut sums = [[[simd.splat_f32s(0.0); PARTIAL_SUMS]; N]; R];
    let done = x[0].len() / PARTIAL_SUMS * PARTIAL_SUMS;
    let mut at = 0;
    while at < done {
        for v in 0..vectors {
            let from = at + v * S::F32_LANES;
            for r in 0..R {
                let x = S::as_simd_f32s(&x[r][from..from + S::F32_LANES]).0[0];
                for n in 0..N {
                    let w = S::as_simd_f32s(&w[n][from..from + S::F32_LANES]).0[0];
                    sums[r][n][v] = simd.mul_add_f32s(x, w, sums[r][n][v]);
                }
            }
        }
        at += PARTIAL_SUMS;
    }
    for r in 0..R {
        for n in 0..N {
            let mut partials = [0f32; PARTIAL_SUMS];
            for (partials, sum) in partials.chunks_exact_mut(S::F32_LANES).zip(&sums[r][n]) {
                S::as_mut_simd_f32s(partials).0[0] = *sum;
            }
            for ((sum, x), w) in partials.iter_mut().zip(&x[r][done..]).zip(&w[n][done..]) {
                *sum = x.mul_add(*w, *sum);
            }
            let [a, b, c, d, e, f, g, h] = partials;
            tile[n][row + r] = ((a + e) + (c + g)) + ((b + f) + (d + h));
        }
    }
}
