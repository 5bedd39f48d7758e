//! Causal attention of a block of queries over tiles of keys, with an online softmax (Dao et al. 2022): the scores,
//! probabilities and values of a tile stay in the L1 cache whatever the context length.
//!
//! Queries lie across the SIMD lanes, so the maximum and the sum of the softmax need no reduction across lanes, and
//! keys and values are read in place, one value for all lanes, without copying or packing. Each query's result comes
//! from the same operations in the same order, independent of the other queries of the block, so splitting a prompt
//! differently gives the same bits.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::tile::KeyValues;
use crate::ops::simd::exp;

/// Queries per block.
pub(super) const QUERIES: usize = 64;

/// Keys per tile.
const KEYS: usize = 64;

/// Keys (or value dimensions) multiplied at once: with four vectors of queries, this fills the registers.
const AT_ONCE: usize = 4;

/// One value per query.
type Lanes = [f32; QUERIES];

/// Rows of queries of one head; query `r` attends to `past + r + 1` keys.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, K> {
    /// Rows `q_stride` apart, `dim` wide.
    pub(super) q: &'a [f32],
    pub(super) q_stride: usize,
    pub(super) rows: usize,
    pub(super) past: usize,
    pub(super) kv: K,
    pub(super) dim: usize,
    pub(super) scale: f32,
}

/// Scratch buffers reused by the heads of a block.
pub(super) struct Scratch {
    /// Scaled queries, `[dim]`.
    queries: Vec<Lanes>,
    /// Scores of a tile, then its probabilities, `[keys]`.
    scores: Vec<Lanes>,
    /// Values weighted by the probabilities so far, `[dim]`.
    sums: Vec<Lanes>,
}

impl Scratch {
    pub(super) fn new(dim: usize) -> Self {
        Self {
            queries: vec![[0.0; QUERIES]; dim],
            scores: vec![[0.0; QUERIES]; KEYS],
            sums: vec![[0.0; QUERIES]; dim],
        }
    }
}

impl<'k, K: KeyValues<'k>> Block<'_, K> {
    /// Writes each query's result into `out`, rows `width` apart.
    pub(super) fn attend(self, out: &mut [f32], width: usize, scratch: &mut Scratch) {
        let block = self;
        let call = Call {
            block,
            scratch,
            out,
            width,
            lifetime: PhantomData,
        };
        pulp::Arch::new().dispatch(call);
    }

    /// The number of queries that `key` is masked for: those before it.
    #[inline(always)]
    fn masked_queries(&self, key: usize) -> usize {
        key.saturating_sub(self.past).min(QUERIES)
    }
}

struct Call<'a, 'k, K> {
    block: Block<'a, K>,
    scratch: &'a mut Scratch,
    out: &'a mut [f32],
    width: usize,
    lifetime: PhantomData<&'k ()>,
}

impl<'k, K: KeyValues<'k>> WithSimd for Call<'_, 'k, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            block,
            scratch,
            out,
            width,
            ..
        } = self;
        let Scratch {
            queries,
            scores,
            sums,
        } = scratch;
        let (dim, stride) = (block.dim, block.kv.stride());
        let key_steps = block.kv.key_steps();
        for (d, lanes) in queries.iter_mut().enumerate() {
            lanes.fill(0.0);
            for (r, lane) in lanes.iter_mut().take(block.rows).enumerate() {
                *lane = block.q[r * block.q_stride + d] * block.scale;
            }
        }
        sums.fill([0.0; QUERIES]);
        let mut best: Lanes = [f32::NEG_INFINITY; QUERIES];
        let mut total: Lanes = [0.0; QUERIES];
        let seen = block.past + block.rows;
        for first in (0..seen).step_by(KEYS) {
            let tile = &mut scores[..KEYS.min(seen - first)];
            let keys = block.kv.keys(first, first + tile.len());
            for (tile, keys) in tile.chunks_mut(keys.each()).zip(keys.parts()) {
                let keys = Factors {
                    parts: &[keys],
                    each: usize::MAX,
                    steps: key_steps,
                };
                products(simd, tile, queries, keys, block.rows, false);
            }
            // Only the last tiles contain masked keys.
            let is_masked = block.masked_queries(first + tile.len() - 1) > 0;
            if is_masked {
                for (k, lanes) in tile.iter_mut().enumerate() {
                    lanes[..block.masked_queries(first + k)].fill(f32::NEG_INFINITY);
                }
            }
            let correction = online_softmax(tile, &mut best, &mut total);
            if is_masked {
                // The vectorized exponential of minus infinity is slightly above zero.
                for (k, lanes) in tile.iter_mut().enumerate() {
                    lanes[..block.masked_queries(first + k)].fill(0.0);
                }
            }
            for lanes in sums.iter_mut() {
                lanes
                    .iter_mut()
                    .zip(&correction)
                    .for_each(|(sum, f)| *sum *= f);
            }
            let values = block.kv.values(first, first + tile.len());
            let values = Factors {
                parts: values.parts(),
                each: values.each(),
                steps: (1, stride),
            };
            products(simd, sums, tile, values, block.rows, true);
        }
        for (r, total) in total.iter().enumerate().take(block.rows) {
            let inverse = 1.0 / total;
            for (d, out) in out[r * width..][..dim].iter_mut().enumerate() {
                *out = sums[d][r] * inverse;
            }
        }
    }
}

/// The online softmax step: replaces a tile's scores by their exponentials relative to the running maximum and updates
/// maximum and total. Returns the factors by which earlier sums must be multiplied.
#[inline(always)]
fn online_softmax(tile: &mut [Lanes], best: &mut Lanes, total: &mut Lanes) -> Lanes {
    let mut now = *best;
    for lanes in tile.iter() {
        for (now, score) in now.iter_mut().zip(lanes) {
            *now = if *score > *now { *score } else { *now };
        }
    }
    let mut correction = [0.0; QUERIES];
    for ((correction, best), now) in correction.iter_mut().zip(best.iter()).zip(&now) {
        *correction = exp(best - now);
    }
    let mut sum = [0.0; QUERIES];
    for lanes in tile {
        for ((lane, now), sum) in lanes.iter_mut().zip(&now).zip(&mut sum) {
            *lane = exp(*lane - now);
            *sum += *lane;
        }
    }
    for ((total, correction), sum) in total.iter_mut().zip(&correction).zip(&sum) {
        *total = *total * correction + sum;
    }
    *best = now;
    correction
}

/// The second operand of a product: keys or values in place. Factor `(i, k)` is at `i * steps.0 + k * steps.1` of the
/// part that `k` falls into; every part but the last has `each` of them.
#[derive(Clone, Copy)]
struct Factors<'a> {
    parts: &'a [&'a [f32]],
    each: usize,
    steps: (usize, usize),
}

/// `y[i] (+)= sum over k of w(i, k) x[k]`, for the lanes that hold queries.
#[inline(always)]
fn products<S: Simd>(
    simd: S,
    y: &mut [Lanes],
    x: &[Lanes],
    w: Factors<'_>,
    rows: usize,
    accumulate: bool,
) {
    let mut tasks = y.chunks_exact_mut(AT_ONCE);
    let mut first = 0;
    for y in &mut tasks {
        strip::<S, AT_ONCE>(simd, y, x, (w, first), rows, accumulate);
        first += AT_ONCE;
    }
    for y in tasks.into_remainder().chunks_exact_mut(1) {
        strip::<S, 1>(simd, y, x, (w, first), rows, accumulate);
        first += 1;
    }
}

/// [`products`] for `N` results starting at `first`.
#[inline(always)]
fn strip<S: Simd, const N: usize>(
    simd: S,
    y: &mut [Lanes],
    x: &[Lanes],
    w: (Factors<'_>, usize),
    rows: usize,
    accumulate: bool,
) {
    // With 16 registers two vectors of queries fit per result, with 32 four.
    let wide = if S::F32_LANES >= 16 { 4 } else { 2 };
    let vectors = rows.div_ceil(S::F32_LANES);
    let mut at = 0;
    while at + wide <= vectors {
        if wide == 4 {
            strip_vectors::<S, N, 4>(simd, y, x, w, at, accumulate);
        } else {
            strip_vectors::<S, N, 2>(simd, y, x, w, at, accumulate);
        }
        at += wide;
    }
    for at in at..vectors {
        strip_vectors::<S, N, 1>(simd, y, x, w, at, accumulate);
    }
}

/// [`strip`] for `V` vectors of queries starting at `at`, accumulated in registers.
#[inline(always)]
fn strip_vectors<S: Simd, const N: usize, const V: usize>(
    simd: S,
    y: &mut [Lanes],
    x: &[Lanes],
    (w, first): (Factors<'_>, usize),
    at: usize,
    accumulate: bool,
) {
    let (row, col) = w.steps;
    let mut sums = [[simd.splat_f32s(0.0); V]; N];
    for (x, w) in x.chunks(w.each).zip(w.parts) {
        let w = &w[first * row..];
        for (k, x) in x.iter().enumerate() {
            let x = &S::as_simd_f32s(x).0[at..at + V];
            for (n, sums) in sums.iter_mut().enumerate() {
                let factor = simd.splat_f32s(w[n * row + k * col]);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = simd.mul_add_f32s(factor, *x, *sum);
                }
            }
        }
    }
    for (y, sums) in y.iter_mut().zip(&sums) {
        let y = &mut S::as_mut_simd_f32s(y).0[at..at + V];
        for (y, sum) in y.iter_mut().zip(sums) {
            *y = if accumulate {
                simd.add_f32s(*y, *sum)
            } else {
                *sum
            };
        }
    }
}
