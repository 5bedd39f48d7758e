//! Attention of one position, as decoding needs it, for the query heads that share a key head: every
//! key and every value comes from memory once, tile by tile, in the order in which the cache holds them.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::tile::{KeyValues, Tile};
use crate::ops::simd::{exp_sum, max};

/// Keys in a tile: what fits into the first-level cache while the heads use it in turn, and how many
/// terms are summed up before they are added to the result, which keeps errors small.
pub(super) const TILE: usize = 128;

/// Sums that run side by side, so that no addition waits for the one before it.
const CHAINS: usize = 4;

/// `out = softmax(scale * q keysᵀ) values` over the first `seen` keys, for each head of `dim` values in
/// `q` and `out`.
pub(super) fn attend<'a, K: KeyValues<'a>>(
    out: &mut [f32],
    q: &[f32],
    dim: usize,
    kv: K,
    seen: usize,
    scale: f32,
) {
    pulp::Arch::new().dispatch(Call {
        out,
        q,
        dim,
        kv,
        seen,
        scale,
        lives: PhantomData,
    });
}

struct Call<'a, 'k, K> {
    out: &'a mut [f32],
    q: &'a [f32],
    dim: usize,
    kv: K,
    seen: usize,
    scale: f32,
    lives: PhantomData<&'k ()>,
}

impl<'k, K: KeyValues<'k>> WithSimd for Call<'_, 'k, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            out,
            q,
            dim,
            kv,
            seen,
            scale,
            ..
        } = self;
        let stride = kv.stride();
        let mut scores = vec![0f32; seen * (q.len() / dim)];
        for first in (0..seen).step_by(TILE) {
            let last = seen.min(first + TILE);
            let keys = kv.keys(first, last);
            for (q, scores) in q.chunks_exact(dim).zip(scores.chunks_exact_mut(seen)) {
                let pieces = scores[first..last].chunks_mut(keys.each());
                for (scores, keys) in pieces.zip(keys.parts()) {
                    score(simd, scores, q, keys, stride);
                }
            }
        }
        out.fill(0.0);
        for scores in scores.chunks_exact_mut(seen) {
            scores.iter_mut().for_each(|score| *score *= scale);
            let best = max(scores);
            let inverse = 1.0 / exp_sum(scores, best);
            scores.iter_mut().for_each(|score| *score *= inverse);
        }
        for first in (0..seen).step_by(TILE) {
            let last = seen.min(first + TILE);
            let values = kv.values(first, last);
            for (out, p) in out.chunks_exact_mut(dim).zip(scores.chunks_exact(seen)) {
                gather(simd, out, &p[first..last], &values, stride);
            }
        }
    }
}

/// Dot products of `q` with consecutive keys. Each key is a sum of its own, so several are under way at a time.
#[inline(always)]
fn score<S: Simd>(simd: S, scores: &mut [f32], q: &[f32], keys: &[f32], stride: usize) {
    // Loops, not closures: what the library calls back is compiled without the vector instructions.
    let (q_main, q_rest) = S::as_simd_f32s(q);
    for (score, key) in scores.iter_mut().zip(keys.chunks(stride)) {
        let (main, rest) = S::as_simd_f32s(&key[..q.len()]);
        let mut sums = simd.splat_f32s(0.0);
        for (q, key) in q_main.iter().zip(main) {
            sums = simd.mul_add_f32s(*q, *key, sums);
        }
        let mut sum = simd.reduce_sum_f32s(sums);
        for (q, key) in q_rest.iter().zip(rest) {
            sum = q.mul_add(*key, sum);
        }
        *score = sum;
    }
}

/// Adds consecutive values, each row weighted by its probability.
#[inline(always)]
fn gather<S: Simd>(simd: S, out: &mut [f32], p: &[f32], values: &Tile<'_>, stride: usize) {
    let (vectors, rest) = S::as_mut_simd_f32s(out);
    let mut pairs = vectors.chunks_exact_mut(2);
    let mut at = 0;
    for pair in &mut pairs {
        weigh::<S, 2>(simd, pair, p, values, (at, stride));
        at += 2 * S::F32_LANES;
    }
    for one in pairs.into_remainder().chunks_exact_mut(1) {
        weigh::<S, 1>(simd, one, p, values, (at, stride));
        at += S::F32_LANES;
    }
    for (d, out) in rest.iter_mut().enumerate() {
        for (p, values) in p.chunks(values.each()).zip(values.parts()) {
            for (p, value) in p.iter().zip(values.chunks(stride)) {
                *out += p * value[at + d];
            }
        }
    }
}

/// Adds `V` vectors of the values, from column `from` on, each row weighted by its probability. Pieces have whole
/// quads of rows, so that where they end changes no sum.
#[inline(always)]
fn weigh<S: Simd, const V: usize>(
    simd: S,
    out: &mut [S::f32s],
    p: &[f32],
    values: &Tile<'_>,
    (from, stride): (usize, usize),
) {
    let width = V * S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); V]; CHAINS];
    for (p, values) in p.chunks(values.each()).zip(values.parts()) {
        let (quads, rest) = p.as_chunks::<CHAINS>();
        let mut at = from;
        for quad in quads {
            for n in 0..CHAINS {
                add(simd, &mut sums[n], quad[n], &values[at..at + width]);
                at += stride;
            }
        }
        for p in rest {
            add(simd, &mut sums[0], *p, &values[at..at + width]);
            at += stride;
        }
    }
    let [a, b, c, d] = &sums;
    for (v, out) in out.iter_mut().enumerate().take(V) {
        let sum = simd.add_f32s(simd.add_f32s(a[v], b[v]), simd.add_f32s(c[v], d[v]));
        *out = simd.add_f32s(*out, sum);
    }
}

#[inline(always)]
fn add<S: Simd, const V: usize>(simd: S, sums: &mut [S::f32s; V], p: f32, row: &[f32]) {
    let p = simd.splat_f32s(p);
    let row = &S::as_simd_f32s(row).0[..V];
    for v in 0..V {
        sums[v] = simd.mul_add_f32s(p, row[v], sums[v]);
    }
}
