//! The gated feed-forward activation `silu(gate) * up` (Shazeer 2020), forward and backward. A row of `2 * width`
//! values holds gate and up next to each other, as the fused projection writes them.

use super::simd::{exp, vectorized};

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `y [rows, width] = silu(gu[.., ..width]) * gu[.., width..]`.
pub(crate) fn forward(y: &mut [f32], gate_up: &[f32], width: usize) {
    vectorized(
        #[inline(always)]
        || {
            for (y, row) in y
                .chunks_exact_mut(width)
                .zip(gate_up.chunks_exact(2 * width))
            {
                let (gate, up) = row.split_at(width);
                for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
                    *y = g * sigmoid(*g) * u;
                }
            }
        },
    );
}

/// Replaces `gate_up` by the gradient with respect to it, given `dy [rows, width]`.
pub(crate) fn backward_in_place(gate_up: &mut [f32], dy: &[f32], width: usize) {
    vectorized(
        #[inline(always)]
        || {
            for (row, dy) in gate_up
                .chunks_exact_mut(2 * width)
                .zip(dy.chunks_exact(width))
            {
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
}
