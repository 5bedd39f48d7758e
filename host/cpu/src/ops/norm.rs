//! RMS norm over the last axis, `y = x / rms(x) * g`, forward and backward (Zhang and Sennrich 2019). Used for the
//! residual stream and for the per-head query and key norms.

use super::simd::{dot, vectorized};

/// Normalizes each row of `gain.len()` values of `x` into `y`.
pub(crate) fn forward(y: &mut [f32], x: &[f32], gain: &[f32], eps: f32) {
    let width = gain.len();
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

/// Adds dL/dx to `dx` (or overwrites it) given `dy`, and adds dL/dgain to `dgain` if requested.
pub(crate) fn backward(
    dx: &mut [f32],
    dy: &[f32],
    x: &[f32],
    gain: &[f32],
    eps: f32,
    accumulate: bool,
    mut dgain: Option<&mut [f32]>,
) {
    let width = gain.len();
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
                if let Some(dgain) = dgain.as_deref_mut() {
                    for ((dg, dy), x) in dgain.iter_mut().zip(dy).zip(x) {
                        *dg += dy * x * scale;
                    }
                }
            }
        },
    );
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}
