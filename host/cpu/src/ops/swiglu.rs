//! The gated feed-forward activation `silu(gate) * up` (Shazeer 2020), forward and backward. A row of `2 * width`
//! values holds gate and up next to each other, as the fused projection writes them.

use super::simd::{exp, vectorized};
use super::thread_pool::{Threads, parallel_rows};

/// Work of one value of a row of gate and up, in multiply-adds.
const COST: usize = 8;

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `y [rows, width] = silu(gu[.., ..width]) * gu[.., width..]`.
pub(crate) fn forward(y: &mut [f32], gate_up: &[f32], width: usize, threads: Threads) {
    parallel_rows(threads, y, width, 2 * COST, |y, rows| {
        let gate_up = &gate_up[rows.start * 2 * width..rows.end * 2 * width];
        vectorized(
            #[inline(always)]
            || {
                let rows = gate_up.chunks_exact(2 * width);
                for (y, row) in y.chunks_exact_mut(width).zip(rows) {
                    let (gate, up) = row.split_at(width);
                    for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
                        *y = g * sigmoid(*g) * u;
                    }
                }
            },
        );
    });
}

/// Replaces `gate_up` by the gradient with respect to it, given `dy [rows, width]`.
pub(crate) fn backward_in_place(gate_up: &mut [f32], dy: &[f32], width: usize, threads: Threads) {
    parallel_rows(threads, gate_up, 2 * width, COST, |gate_up, rows| {
        let dy = &dy[rows.start * width..rows.end * width];
        vectorized(
            #[inline(always)]
            || {
                let rows = gate_up.chunks_exact_mut(2 * width);
                for (row, dy) in rows.zip(dy.chunks_exact(width)) {
                    let (gate, up) = row.split_at_mut(width);
                    for ((g, u), dy) in gate.iter_mut().zip(up.iter_mut()).zip(dy) {
                        let s = sigmoid(*g);
                        let d_gate = dy * *u * s * (1.0 + *g * (1.0 - s));
                        *u = dy * *g * s;
                        *g = d_gate;
                    }
                }
            },
        );
    });
}
