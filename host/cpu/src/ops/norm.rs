//! RMS norm over the last axis, `y = x / rms(x) * g`, forward and backward (Zhang and Sennrich 2019). Used for the
//! residual stream and for the per-head query and key norms.

use std::ops::Range;

use super::simd::{dot, vectorized};
use super::thread_pool::{Threads, parallel_rows};

/// Work of one value, in multiply-adds: little beside what it takes to read and write it.
const COST: usize = 4;

/// Normalizes each row of `gain.len()` values of `x` into `y`.
pub(crate) fn forward(y: &mut [f32], x: &[f32], gain: &[f32], eps: f32, threads: Threads) {
    let width = gain.len();
    parallel_rows(threads, y, width, COST, |y, rows| {
        let x = of_rows(x, rows, width);
        vectorized(
            #[inline(always)]
            || {
                for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    let scale = inverse_rms(x, eps);
                    for ((y, x), g) in y.iter_mut().zip(x).zip(gain) {
                        *y = x * scale * g;
                    }
                }
            },
        );
    });
}

/// As [`forward`], in place.
pub(crate) fn forward_in_place(x: &mut [f32], gain: &[f32], eps: f32) {
    let width = gain.len();
    vectorized(
        #[inline(always)]
        || {
            for x in x.chunks_exact_mut(width) {
                let scale = inverse_rms(x, eps);
                for (x, g) in x.iter_mut().zip(gain) {
                    *x *= scale * g;
                }
            }
        },
    );
}

/// Normalizes the heads of queries and keys, which follow each other in rows of `stride`: all values of a kind have its
/// gain and its width.
pub(crate) fn heads_in_place(
    qkv: &mut [f32],
    stride: usize,
    (q_gain, q): (&[f32], usize),
    (k_gain, k): (&[f32], usize),
    eps: f32,
    threads: Threads,
) {
    parallel_rows(threads, qkv, stride, COST, |qkv, _| {
        for row in qkv.chunks_exact_mut(stride) {
            forward_in_place(&mut row[..q], q_gain, eps);
            forward_in_place(&mut row[q..q + k], k_gain, eps);
        }
    });
}

/// Adds dL/dx to `dx` (or overwrites it) given `dy`.
pub(crate) fn backward(
    dx: &mut [f32],
    dy: &[f32],
    x: &[f32],
    gain: &[f32],
    eps: f32,
    accumulate: bool,
    threads: Threads,
) {
    let width = gain.len();
    parallel_rows(threads, dx, width, COST, |dx, rows| {
        let (dy, x) = (of_rows(dy, rows.clone(), width), of_rows(x, rows, width));
        vectorized(
            #[inline(always)]
            || {
                let rows = dx.chunks_exact_mut(width).zip(dy.chunks_exact(width));
                for ((dx, dy), x) in rows.zip(x.chunks_exact(width)) {
                    let scale = inverse_rms(x, eps);
                    let mut lanes = [0f32; 8];
                    for (i, ((dy, x), g)) in dy.iter().zip(x).zip(gain).enumerate() {
                        lanes[i % 8] += dy * g * x;
                    }
                    let shared = lanes.iter().sum::<f32>() * scale * scale * scale / width as f32;
                    for (((dx, dy), x), g) in dx.iter_mut().zip(dy).zip(x).zip(gain) {
                        let value = dy * g * scale - shared * x;
                        *dx = if accumulate { *dx + value } else { value };
                    }
                }
            },
        );
    });
}

/// Adds dL/dgain to `dgain` given `dy`.
pub(crate) fn gain_gradient(dgain: &mut [f32], dy: &[f32], x: &[f32], eps: f32) {
    let width = dgain.len();
    vectorized(
        #[inline(always)]
        || {
            for (dy, x) in dy.chunks_exact(width).zip(x.chunks_exact(width)) {
                let scale = inverse_rms(x, eps);
                for ((dg, dy), x) in dgain.iter_mut().zip(dy).zip(x) {
                    *dg += dy * x * scale;
                }
            }
        },
    );
}

fn of_rows(values: &[f32], rows: Range<usize>, width: usize) -> &[f32] {
    &values[rows.start * width..rows.end * width]
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}
