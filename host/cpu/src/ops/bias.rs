//! A bias added to every row, and its gradient: the sum over rows. A layer without one has an empty bias.

use super::simd::{axpy, vectorized};

/// Adds `bias` to each row of `y [rows, bias]`; does nothing when it is empty.
pub(crate) fn forward(y: &mut [f32], bias: &[f32]) {
    if bias.is_empty() {
        return;
    }
    vectorized(
        #[inline(always)]
        || {
            for row in y.chunks_exact_mut(bias.len()) {
                axpy(row, 1.0, bias);
            }
        },
    );
}

/// Adds dL/dbias given `dy`, whose rows are `stride` apart.
pub(crate) fn backward(dbias: &mut [f32], dy: &[f32], stride: usize) {
    vectorized(
        #[inline(always)]
        || {
            for row in dy.chunks(stride) {
                axpy(dbias, 1.0, &row[..dbias.len()]);
            }
        },
    );
}
