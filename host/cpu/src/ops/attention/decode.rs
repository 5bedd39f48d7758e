//! Attention of a single position, as in decoding, for the query heads that share a key head: keys and values are read
//! from memory once per two heads, in the order in which the cache stores them.
//!
//! Keys lie across the SIMD lanes and the values of a query are multiplied in one by one, so that no score needs a sum
//! across lanes. Keys in another layout are transposed first.

use std::cell::RefCell;
use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::tile::{KeyValues, TILE};
use crate::ops::prefetch::prefetch;
use crate::ops::simd::{exp_sum, max};
use clawhost_engine::backend::BLOCK_TOKENS;

/// Independent accumulators, so that an addition does not wait for the previous one.
const ACCUMULATORS: usize = 2;

/// Vectors accumulated at once.
const VECTORS_AT_ONCE: usize = 2;

/// `out = softmax(scale * q keysᵀ) values` over the first `seen` keys, for each head of `dim` values in `q` and `out`.
pub(super) fn attend<'a, K: KeyValues<'a>>(
    out: &mut [f32],
    q: &[f32],
    dim: usize,
    kv: K,
    seen: usize,
    scale: f32,
) {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.queries.clear();
        scratch.queries.extend(q.iter().map(|q| q * scale));
        let row = seen.next_multiple_of(BLOCK_TOKENS);
        scratch.scores.resize(row * (q.len() / dim), 0.0);
        pulp::Arch::new().dispatch(Call {
            out,
            dim,
            kv,
            seen,
            row,
            scratch,
            lifetime: PhantomData,
        });
    });
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Scratch buffers reused between calls.
struct Scratch {
    /// Scaled queries, `[heads, dim]`.
    queries: Vec<f32>,
    /// Scores, then their exponentials, `[heads, row]`.
    scores: Vec<f32>,
    /// Transposed keys, `[dim, BLOCK_TOKENS]`.
    keys: Vec<f32>,
}

impl Scratch {
    const fn new() -> Self {
        Self {
            queries: Vec::new(),
            scores: Vec::new(),
            keys: Vec::new(),
        }
    }
}

struct Call<'a, 'k, K> {
    out: &'a mut [f32],
    dim: usize,
    kv: K,
    seen: usize,
    /// Length of a head's scores, rounded up to whole blocks of keys.
    row: usize,
    scratch: &'a mut Scratch,
    lifetime: PhantomData<&'k ()>,
}

impl<'k, K: KeyValues<'k>> WithSimd for Call<'_, 'k, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            out,
            dim,
            kv,
            seen,
            row,
            scratch,
            ..
        } = self;
        let Scratch {
            queries,
            scores,
            keys: transposed,
        } = scratch;
        let steps = kv.key_steps();
        for first in (0..seen).step_by(BLOCK_TOKENS) {
            let count = BLOCK_TOKENS.min(seen - first);
            let tile = kv.keys(first, first + count);
            let Some(keys) = tile.parts().first() else {
                break;
            };
            let (keys, ahead) = if steps == (1, BLOCK_TOKENS) {
                let (next, last) = (first + count, seen.min(first + count + BLOCK_TOKENS));
                let next = if next < last {
                    kv.keys(next, last)
                } else {
                    kv.values(0, BLOCK_TOKENS.min(seen))
                };
                let next = next.parts().first().copied().unwrap_or_default();
                (&keys[..dim * BLOCK_TOKENS], next)
            } else {
                transpose_keys(transposed, keys, steps, (count, dim));
                (&transposed[..], &[][..])
            };
            let mut queries = queries.chunks_exact(2 * dim);
            let mut scores = scores.chunks_exact_mut(2 * row);
            for (q, scores) in queries.by_ref().zip(scores.by_ref()) {
                score::<S, 2>(simd, scores, (row, first), q, (keys, ahead));
            }
            let last = queries.remainder();
            if !last.is_empty() {
                score::<S, 1>(
                    simd,
                    scores.into_remainder(),
                    (row, first),
                    last,
                    (keys, ahead),
                );
            }
        }
        out.fill(0.0);
        for scores in scores.chunks_exact_mut(row) {
            let scores = &mut scores[..seen];
            let best = max(scores);
            let inverse = 1.0 / exp_sum(scores, best);
            scores.iter_mut().for_each(|score| *score *= inverse);
        }
        for first in (0..seen).step_by(TILE) {
            let last = seen.min(first + TILE);
            let tile = kv.values(first, last);
            let mut outs = out.chunks_exact_mut(2 * dim);
            let mut scores = scores.chunks_exact(2 * row);
            for (out, p) in outs.by_ref().zip(scores.by_ref()) {
                let (one, other) = p.split_at(row);
                let p = [&one[first..last], &other[first..last]];
                weighted_sum::<S, 2>(simd, out, p, (tile.parts(), tile.each()), kv.stride());
            }
            if let [_, ..] = scores.remainder() {
                let p = [&scores.remainder()[first..last]];
                let out = outs.into_remainder();
                weighted_sum::<S, 1>(simd, out, p, (tile.parts(), tile.each()), kv.stride());
            }
        }
    }
}

/// Transposes `count` keys so that they lie across the lanes; the remaining lanes are zero.
#[inline(always)]
fn transpose_keys(
    transposed: &mut Vec<f32>,
    keys: &[f32],
    (key, value): (usize, usize),
    (count, dim): (usize, usize),
) {
    transposed.clear();
    transposed.resize(dim * BLOCK_TOKENS, 0.0);
    for (d, lanes) in transposed.chunks_exact_mut(BLOCK_TOKENS).enumerate() {
        for (k, lane) in lanes.iter_mut().take(count).enumerate() {
            *lane = keys[k * key + d * value];
        }
    }
}

/// Computes the scores of a block of keys for `H` queries and writes them starting at `at` into rows of length `row`.
/// Prefetches an equal part of `ahead`, which is read next.
#[inline(always)]
fn score<S: Simd, const H: usize>(
    simd: S,
    scores: &mut [f32],
    (row, at): (usize, usize),
    q: &[f32],
    (keys, ahead): (&[f32], &[f32]),
) {
    // Loops instead of closures: closures called by the library are compiled without the vector instructions.
    let dim = keys.len() / BLOCK_TOKENS;
    let vectors = BLOCK_TOKENS / S::F32_LANES;
    let (pairs, last) = keys.as_chunks::<{ ACCUMULATORS * BLOCK_TOKENS }>();
    for strip in (0..vectors).step_by(VECTORS_AT_ONCE) {
        let mut sums = [[[simd.splat_f32s(0.0); VECTORS_AT_ONCE]; H]; ACCUMULATORS];
        for (d, pair) in pairs.iter().enumerate() {
            let each = ACCUMULATORS * BLOCK_TOKENS;
            if strip == 0
                && let Some(ahead) = ahead.get(d * each..(d + 1) * each)
            {
                prefetch(ahead);
            }
            for (c, sums) in sums.iter_mut().enumerate() {
                let lanes = &S::as_simd_f32s(pair).0[c * vectors + strip..][..VECTORS_AT_ONCE];
                for (h, sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat_f32s(q[h * dim + ACCUMULATORS * d + c]);
                    for (sum, lanes) in sums.iter_mut().zip(lanes) {
                        *sum = simd.mul_add_f32s(factor, *lanes, *sum);
                    }
                }
            }
        }
        // The last dimension when their number is odd.
        if !last.is_empty() {
            let lanes = &S::as_simd_f32s(last).0[strip..][..VECTORS_AT_ONCE];
            for (h, sums) in sums[0].iter_mut().enumerate() {
                let factor = simd.splat_f32s(q[(h + 1) * dim - 1]);
                for (sum, lanes) in sums.iter_mut().zip(lanes) {
                    *sum = simd.mul_add_f32s(factor, *lanes, *sum);
                }
            }
        }
        let [one, other] = sums;
        for h in 0..H {
            let scores = &mut scores[h * row + at..][..BLOCK_TOKENS];
            let scores = &mut S::as_mut_simd_f32s(scores).0[strip..][..VECTORS_AT_ONCE];
            for v in 0..VECTORS_AT_ONCE {
                scores[v] = simd.add_f32s(one[h][v], other[h][v]);
            }
        }
    }
}

/// Adds rows of values, each weighted by its probability, for `H` heads.
#[inline(always)]
fn weighted_sum<S: Simd, const H: usize>(
    simd: S,
    out: &mut [f32],
    p: [&[f32]; H],
    values: (&[&[f32]], usize),
    stride: usize,
) {
    let dim = out.len() / H;
    let lanes = S::F32_LANES;
    let mut at = 0;
    while at + VECTORS_AT_ONCE * lanes <= dim {
        weighted_sum_strip::<S, H, VECTORS_AT_ONCE>(simd, out, p, values, (at, stride));
        at += VECTORS_AT_ONCE * lanes;
    }
    while at + lanes <= dim {
        weighted_sum_strip::<S, H, 1>(simd, out, p, values, (at, stride));
        at += lanes;
    }
    let (parts, each) = values;
    for d in at..dim {
        for (h, p) in p.iter().enumerate() {
            for (p, values) in p.chunks(each).zip(parts) {
                for (p, value) in p.iter().zip(values.chunks(stride)) {
                    out[h * dim + d] += p * value[d];
                }
            }
        }
    }
}

/// [`weighted_sum`] for `V` vectors starting at column `from`. Parts have an even number of rows, so their boundaries
/// do not change the order of the sums.
#[inline(always)]
fn weighted_sum_strip<S: Simd, const H: usize, const V: usize>(
    simd: S,
    out: &mut [f32],
    p: [&[f32]; H],
    (parts, each): (&[&[f32]], usize),
    (from, stride): (usize, usize),
) {
    let (dim, width) = (out.len() / H, V * S::F32_LANES);
    let mut sums = [[[simd.splat_f32s(0.0); V]; H]; ACCUMULATORS];
    let mut first = 0;
    for (n, values) in parts.iter().enumerate() {
        let ahead = parts.get(n + 1).copied().unwrap_or_default();
        let count = each.min(p[0].len() - first);
        let p = p.map(|p| &p[first..first + count]);
        first += count;
        let mut at = from;
        for k in 0..count / ACCUMULATORS {
            if from == 0
                && let Some(ahead) = ahead.get(at..at + ACCUMULATORS * stride)
            {
                prefetch(ahead);
            }
            for (c, sums) in sums.iter_mut().enumerate() {
                let row = &values[at..at + width];
                add(simd, sums, p.map(|p| p[ACCUMULATORS * k + c]), row);
                at += stride;
            }
        }
        if !count.is_multiple_of(ACCUMULATORS) {
            let row = &values[at..at + width];
            add(simd, &mut sums[0], p.map(|p| p[count - 1]), row);
        }
    }
    let [one, other] = sums;
    for h in 0..H {
        let out = &mut S::as_mut_simd_f32s(&mut out[h * dim + from..][..width]).0[..V];
        for v in 0..V {
            out[v] = simd.add_f32s(out[v], simd.add_f32s(one[h][v], other[h][v]));
        }
    }
}

#[inline(always)]
fn add<S: Simd, const H: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; H],
    p: [f32; H],
    row: &[f32],
) {
    let row = &S::as_simd_f32s(row).0[..V];
    for h in 0..H {
        let p = simd.splat_f32s(p[h]);
        for v in 0..V {
            sums[h][v] = simd.mul_add_f32s(p, row[v], sums[h][v]);
        }
    }
}
