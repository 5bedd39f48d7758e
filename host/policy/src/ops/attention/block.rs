//! Causal attention of a block of queries over tiles of keys, with a running softmax (Dao et al. 2022):
//! a tile's scores, probabilities and values stay in the first-level cache whatever the context.
//!
//! Queries lie across the vector lanes. So the maximum and the sum of the softmax need no step across
//! lanes, and keys and values are read where they are, one number for all lanes, without being
//! copied or packed. Each query's result comes from the same operations in the same order whatever else
//! is in its block, so cutting a prompt elsewhere gives the same bits.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::tile::KeyValues;
use crate::ops::simd::exp;

/// Queries in a block.
pub(super) const QUERIES: usize = 64;

/// Keys in a tile.
const KEYS: usize = 64;

/// Keys, or values of a head, that are multiplied at once: with four vectors of queries, what fits into
/// the registers.
const AT_ONCE: usize = 4;

/// One number for each query.
type Lanes = [f32; QUERIES];

/// Rows of queries of one head and what they may see: query `r` sees `past + r + 1` keys.
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

/// Memory that the heads of a block use in turn.
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
            lives: PhantomData,
        };
        pulp::Arch::new().dispatch(call);
    }

    /// Queries that must not see `key`: those before it.
    #[inline(always)]
    fn before(&self, key: usize) -> usize {
        key.saturating_sub(self.past).min(QUERIES)
    }
}

struct Call<'a, 'k, K> {
    block: Block<'a, K>,
    scratch: &'a mut Scratch,
    out: &'a mut [f32],
    width: usize,
    lives: PhantomData<&'k ()>,
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
            // Only the last tiles hold keys that some query must not see.
            let hides = block.before(first + tile.len() - 1) > 0;
            if hides {
                for (k, lanes) in tile.iter_mut().enumerate() {
                    lanes[..block.before(first + k)].fill(f32::NEG_INFINITY);
                }
            }
            let faded = soften(tile, &mut best, &mut total);
            if hides {
                // The vectorised exponential of minus infinity is a little more than nothing.
                for (k, lanes) in tile.iter_mut().enumerate() {
                    lanes[..block.before(first + k)].fill(0.0);
                }
            }
            for lanes in sums.iter_mut() {
                lanes.iter_mut().zip(&faded).for_each(|(sum, f)| *sum *= f);
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

/// Turns a tile's scores into exponentials of their distance to the best so far, which it brings up to
/// date along with the total. What was summed up before has to be multiplied by what it returns.
#[inline(always)]
fn soften(tile: &mut [Lanes], best: &mut Lanes, total: &mut Lanes) -> Lanes {
    let mut now = *best;
    for lanes in tile.iter() {
        for (now, score) in now.iter_mut().zip(lanes) {
            *now = if *score > *now { *score } else { *now };
        }
    }
    let mut faded = [0.0; QUERIES];
    for ((faded, best), now) in faded.iter_mut().zip(best.iter()).zip(&now) {
        *faded = exp(best - now);
    }
    let mut sum = [0.0; QUERIES];
    for lanes in tile {
        for ((lane, now), sum) in lanes.iter_mut().zip(&now).zip(&mut sum) {
            *lane = exp(*lane - now);
            *sum += *lane;
        }
    }
    for ((total, faded), sum) in total.iter_mut().zip(&faded).zip(&sum) {
        *total = *total * faded + sum;
    }
    *best = now;
    faded
}

/// What a product multiplies with: keys or values where they lie. Factor `(i, k)` is at `i * steps.0 + k * steps.1`
/// of the piece that `k` falls into, `each` of them in every piece but the last.
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
    keep: bool,
) {
    let mut tasks = y.chunks_exact_mut(AT_ONCE);
    let mut first = 0;
    for y in &mut tasks {
        strip::<S, AT_ONCE>(simd, y, x, (w, first), rows, keep);
        first += AT_ONCE;
    }
    for y in tasks.into_remainder().chunks_exact_mut(1) {
        strip::<S, 1>(simd, y, x, (w, first), rows, keep);
        first += 1;
    }
}

/// [`products`] for the `N` results from `first` on.
#[inline(always)]
fn strip<S: Simd, const N: usize>(
    simd: S,
    y: &mut [Lanes],
    x: &[Lanes],
    w: (Factors<'_>, usize),
    rows: usize,
    keep: bool,
) {
    // Sixteen registers hold two vectors of queries for each result, thirty-two hold four.
    let wide = if S::F32_LANES >= 16 { 4 } else { 2 };
    let vectors = rows.div_ceil(S::F32_LANES);
    let mut at = 0;
    while at + wide <= vectors {
        if wide == 4 {
            piece::<S, N, 4>(simd, y, x, w, at, keep);
        } else {
            piece::<S, N, 2>(simd, y, x, w, at, keep);
        }
        at += wide;
    }
    for at in at..vectors {
        piece::<S, N, 1>(simd, y, x, w, at, keep);
    }
}

/// [`strip`] for the `V` vectors of queries from `at` on, summed up in registers.
#[inline(always)]
fn piece<S: Simd, const N: usize, const V: usize>(
    simd: S,
    y: &mut [Lanes],
    x: &[Lanes],
    (w, first): (Factors<'_>, usize),
    at: usize,
    keep: bool,
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
            *y = if keep { simd.add_f32s(*y, *sum) } else { *sum };
        }
    }
}
