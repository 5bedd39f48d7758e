//! Products of a few rows with a weight, as decoding needs them: each weight comes from memory once for all rows.
//!
//! Every result is the sum of the same products in the same order whatever rows are beside it: [`CHAINS`] partial
//! sums, of which the one numbered c takes the inputs c, c + 8, c + 16 and so on, added up as a tree. A single row has
//! the partial sums side by side in one vector; of many rows, each has a lane of its own, and the partial
//! sums are vectors. So a conversation gets the same bits alone and in a batch.

use pulp::{Simd, WithSimd};

/// Partial sums of a result.
const CHAINS: usize = 8;

/// Rows that lie across the lanes at once.
pub(super) const BLOCK: usize = 16;

/// Outputs whose results are collected before they are handed over.
pub(super) const TILE: usize = 12;

/// Rows up to which they are multiplied one beside the other rather than across the lanes.
const ALONGSIDE: usize = 8;

/// One input of the rows of a block.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lane([f32; BLOCK]);

/// Rows that are multiplied with weights, laid out for it.
pub(super) struct Rows<'a> {
    x: &'a [f32],
    stride: usize,
    rows: usize,
    inner: usize,
    /// `[blocks][inner]`, of the blocks that go across the lanes.
    across: &'a [Lane],
}

impl<'a> Rows<'a> {
    /// Lays out `rows` rows of `inner` values that are `stride` apart.
    pub(super) fn new(
        (x, stride): (&'a [f32], usize),
        (rows, inner): (usize, usize),
        scratch: &'a mut Vec<Lane>,
    ) -> Self {
        scratch.clear();
        let mut first = 0;
        while rows - first > ALONGSIDE {
            let count = BLOCK.min(rows - first);
            let start = scratch.len();
            scratch.resize(start + inner, Lane([0.0; BLOCK]));
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
            across: scratch,
        }
    }

    /// Multiplies with the `outputs` rows of `w`, `w_stride` apart, and hands over the results tile by tile: first
    /// output, first row, number of rows, and the results, one row of the tile an output.
    pub(super) fn multiply(
        &self,
        w: &[f32],
        w_stride: usize,
        outputs: std::ops::Range<usize>,
        mut take: impl FnMut(usize, usize, usize, &Tile),
    ) {
        let arch = pulp::Arch::new();
        let mut tile = [[0.0; BLOCK]; TILE];
        for start in outputs.clone().step_by(TILE) {
            let count = TILE.min(outputs.end - start);
            let weights = Weights {
                w: &w[start * w_stride..],
                stride: w_stride,
                inner: self.inner,
            };
            let tile_rows = &mut tile[..count];
            let mut first = 0;
            for block in self.across.chunks_exact(self.inner.max(1)) {
                let present = BLOCK.min(self.rows - first);
                arch.dispatch(Across {
                    block,
                    present,
                    weights,
                    tile: tile_rows,
                });
                take(start, first, present, tile_rows);
                first += present;
            }
            if first < self.rows {
                let present = self.rows - first;
                let rows = (first, present);
                dispatch_eight(Along {
                    rows: self,
                    range: rows,
                    weights,
                    tile: tile_rows,
                });
                take(start, first, present, tile_rows);
            }
        }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.stride..][..self.inner]
    }
}

/// Results: of each output, one for each row of a block.
pub(super) type Tile = [[f32; BLOCK]];

/// Weights of a tile's outputs.
#[derive(Clone, Copy)]
struct Weights<'a> {
    w: &'a [f32],
    stride: usize,
    inner: usize,
}

impl<'a> Weights<'a> {
    #[inline(always)]
    fn of(&self, output: usize) -> &'a [f32] {
        &self.w[output * self.stride..][..self.inner]
    }
}

/// Runs `op` with vectors of at most [`CHAINS`] values.
fn dispatch_eight<Op: WithSimd>(op: Op) -> Op::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return Simd::vectorize(simd, op);
    }
    pulp::Arch::new().dispatch(op)
}

/// A block of rows that lie across the lanes.
struct Across<'a> {
    block: &'a [Lane],
    present: usize,
    weights: Weights<'a>,
    tile: &'a mut Tile,
}

impl WithSimd for Across<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            block,
            present,
            weights,
            tile,
        } = self;
        for part in 0..present.div_ceil(S::F32_LANES) {
            let mut at = 0;
            // Thirty-two registers hold the partial sums of three outputs, sixteen of one.
            if S::F32_LANES >= BLOCK {
                while at + 3 <= tile.len() {
                    let w = [weights.of(at), weights.of(at + 1), weights.of(at + 2)];
                    across::<S, 3>(simd, block, part, w, &mut tile[at..at + 3]);
                    at += 3;
                }
            }
            for at in at..tile.len() {
                across::<S, 1>(simd, block, part, [weights.of(at)], &mut tile[at..=at]);
            }
        }
    }
}

/// Products of the rows in one vector with `N` outputs.
#[inline(always)]
fn across<S: Simd, const N: usize>(
    simd: S,
    block: &[Lane],
    part: usize,
    w: [&[f32]; N],
    tile: &mut Tile,
) {
    let mut sums = [[simd.splat_f32s(0.0); CHAINS]; N];
    let (main, rest) = block.as_chunks::<CHAINS>();
    let mut at = 0;
    for lanes in main {
        for c in 0..CHAINS {
            let x = S::as_simd_f32s(&lanes[c].0).0[part];
            for n in 0..N {
                let factor = simd.splat_f32s(w[n][at + c]);
                sums[n][c] = simd.mul_add_f32s(factor, x, sums[n][c]);
            }
        }
        at += CHAINS;
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

/// Rows that are multiplied one beside the other.
struct Along<'a> {
    rows: &'a Rows<'a>,
    /// The first and how many.
    range: (usize, usize),
    weights: Weights<'a>,
    tile: &'a mut Tile,
}

impl WithSimd for Along<'_> {
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
                weights.of(at),
                weights.of(at + 1),
                weights.of(at + 2),
                weights.of(at + 3),
            ];
            let tile = &mut tile[at..at + 4];
            let mut row = 0;
            while row + 2 <= count {
                let x = [rows.row(first + row), rows.row(first + row + 1)];
                along::<S, 2, 4>(simd, x, w, tile, row);
                row += 2;
            }
            if row < count {
                along::<S, 1, 4>(simd, [rows.row(first + row)], w, tile, row);
            }
            at += 4;
        }
        for at in at..tile.len() {
            for row in 0..count {
                let (x, w) = ([rows.row(first + row)], [weights.of(at)]);
                along::<S, 1, 1>(simd, x, w, &mut tile[at..=at], row);
            }
        }
    }
}

/// Products of `R` rows with `N` outputs.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the indices are of registers: an iterator would walk over the wrong dimension"
)]
fn along<S: Simd, const R: usize, const N: usize>(
    simd: S,
    x: [&[f32]; R],
    w: [&[f32]; N],
    tile: &mut Tile,
    row: usize,
) {
    // The partial sums of one result: `CHAINS` values, which is one vector or several.
    let vectors = CHAINS / S::F32_LANES;
    let mut sums = [[[simd.splat_f32s(0.0); CHAINS]; N]; R];
    let done = x[0].len() / CHAINS * CHAINS;
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
        at += CHAINS;
    }
    for r in 0..R {
        for n in 0..N {
            let mut chains = [0f32; CHAINS];
            for (chains, sum) in chains.chunks_exact_mut(S::F32_LANES).zip(&sums[r][n]) {
                S::as_mut_simd_f32s(chains).0[0] = *sum;
            }
            for ((sum, x), w) in chains.iter_mut().zip(&x[r][done..]).zip(&w[n][done..]) {
                *sum = x.mul_add(*w, *sum);
            }
            let [a, b, c, d, e, f, g, h] = chains;
            tile[n][row + r] = ((a + e) + (c + g)) + ((b + f) + (d + h));
        }
    }
}
