//! The gradient of causal attention, in blocks of queries: memory is one block times the context. The probabilities of
//! a block are recomputed instead of stored (Dao et al. 2022, without tiling over keys).

use super::prefill::QUERIES;
use super::shape::{HeadKv, Shape};
use crate::ops::linear::{self, Mat};
use crate::ops::simd;
use crate::ops::thread_pool::Threads;

/// Fills `scores [rows, width]` with the probabilities of the block of queries that starts at `first`; keys after a
/// query's own position get probability zero.
fn probabilities(
    scores: &mut [f32],
    q: Mat<'_>,
    kv: HeadKv<'_>,
    (shape, past, first, rows): (Shape, usize, usize, usize),
    threads: Threads,
) {
    let width = past + first + rows;
    let keys = Mat::strided(kv.keys, width, shape.dim, kv.stride);
    linear::forward(scores, width, q, keys, false, shape.scale(), threads);
    simd::vectorized(
        #[inline(always)]
        || {
            for (r, row) in scores.chunks_exact_mut(width).enumerate() {
                let (seen, later) = row.split_at_mut(past + first + r + 1);
                let sum = simd::exp_sum(seen, simd::max(seen));
                let inverse = 1.0 / sum;
                seen.iter_mut().for_each(|p| *p *= inverse);
                later.fill(0.0);
            }
        },
    );
}

/// Most values in memory at once for a sequence of this many tokens: scores and their gradients of one block of queries,
/// in buffers that grow with the position of the block.
pub(crate) fn scratch_values(tokens: usize) -> usize {
    2 * 2 * QUERIES.min(tokens) * tokens
}

/// Gradients of [`super::forward`] without a past. Queries, keys and values of one sequence are rows of `qkv`
/// (`[tokens, (heads + 2 kv_heads) * dim]`, after rotation); `dqkv` has the same layout and is overwritten.
pub(crate) fn backward(
    dqkv: &mut [f32],
    dout: &[f32],
    qkv: &[f32],
    tokens: usize,
    shape: Shape,
    threads: Threads,
) {
    let dim = shape.dim;
    let (width, row) = (shape.heads * dim, (shape.heads + 2 * shape.kv_heads) * dim);
    dqkv[..tokens * row].fill(0.0);
    let (mut scores, mut dscores) = (Vec::new(), Vec::new());
    for head in 0..shape.heads {
        let group = head * shape.kv_heads / shape.heads;
        let (at_q, at_k) = (head * dim, (shape.heads + group) * dim);
        let at_v = at_k + shape.kv_heads * dim;
        let kv = HeadKv {
            keys: &qkv[at_k..],
            values: &qkv[at_v..],
            stride: row,
        };
        for first in (0..tokens).step_by(QUERIES) {
            let rows = QUERIES.min(tokens - first);
            let seen = first + rows;
            scores.resize(rows * seen, 0.0);
            dscores.resize(rows * seen, 0.0);
            let q = Mat::strided(&qkv[first * row + at_q..], rows, dim, row);
            probabilities(&mut scores, q, kv, (shape, 0, first, rows), threads);
            let dout = Mat::strided(&dout[first * width + at_q..], rows, dim, width);
            let values = Mat::strided(kv.values, seen, dim, row);
            linear::forward(&mut dscores, seen, dout, values, false, 1.0, threads);
            linear::matmul_at_b(
                &mut dqkv[at_v..],
                row,
                Mat::new(&scores, rows, seen),
                dout,
                true,
                1.0,
                threads,
            );
            simd::vectorized(
                #[inline(always)]
                || {
                    let rows = dscores
                        .chunks_exact_mut(seen)
                        .zip(scores.chunks_exact(seen));
                    for (ds, p) in rows {
                        let shared = simd::dot(ds, p);
                        for (ds, p) in ds.iter_mut().zip(p) {
                            *ds = p * (*ds - shared);
                        }
                    }
                },
            );
            let ds = Mat::new(&dscores, rows, seen);
            let keys = Mat::strided(kv.keys, seen, dim, row);
            let scale = shape.scale();
            linear::matmul(
                &mut dqkv[first * row + at_q..],
                row,
                ds,
                keys,
                true,
                scale,
                threads,
            );
            linear::matmul_at_b(&mut dqkv[at_k..], row, ds, q, true, scale, threads);
        }
    }
}
