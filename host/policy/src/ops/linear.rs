//! Dense products of row-major matrices: `x` is `[rows, inner]`, a weight is `[out, inner]` as in Hugging Face
//! checkpoints, so `y = x wᵀ`.
//!
//! This is the only module that calls the GEMM library through raw pointers. Small batches (decoding) go to
//! `small_batch`, which reads each weight once and in place.

#![allow(
    unsafe_code,
    reason = "the GEMM library takes raw pointers, and parts of a product write columns of one buffer; every \
              such call goes through `gemm` or `forward_small_batch` below"
)]

use std::cell::RefCell;

use super::packed_weights::PackedWeights;
use super::small_batch::{BatchRows, InputVector, TILE_OUTPUTS};
use super::{simd, thread_pool};
use crate::background;

/// A view of a row-major matrix inside a larger buffer.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
    packed: Option<&'a PackedWeights>,
}

impl<'a> Mat<'a> {
    /// A dense matrix.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// A matrix whose rows start `stride` values apart.
    pub(crate) fn strided(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(cols <= stride && (rows == 0 || (rows - 1) * stride + cols <= data.len()));
        Self {
            data,
            rows,
            cols,
            stride,
            packed: None,
        }
    }

    /// Adds a packed copy of the weight, which [`forward`] prefers.
    pub(crate) fn with_packed(self, packed: Option<&'a PackedWeights>) -> Self {
        assert!(packed.is_none_or(|packed| packed.shape() == (self.rows, self.cols)));
        Self { packed, ..self }
    }
}

/// The number of threads that one product may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Threads(pub(crate) usize);

/// Minimum number of multiply-adds for which the GEMM library uses several threads.
const MIN_GEMM_PARALLEL: usize = 4 << 20;

/// `dst (+)= scale * op(a) op(b)`, where `op` optionally transposes; with `accumulate` the product is added to `dst`,
/// otherwise `dst` is overwritten. `dst` is `[m, n]` with rows `dst_stride` apart.
#[allow(clippy::too_many_arguments, reason = "the argument list of every GEMM")]
fn gemm(
    dst: &mut [f32],
    dst_stride: usize,
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    (a_row, a_col): (usize, usize),
    b: &[f32],
    (b_row, b_col): (usize, usize),
    accumulate: bool,
    scale: f32,
    threads: Threads,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= dst_stride && (m - 1) * dst_stride + n <= dst.len());
    if k == 0 {
        if !accumulate {
            for row in dst.chunks_mut(dst_stride).take(m) {
                row[..n].fill(0.0);
            }
        }
        return;
    }
    assert!((m - 1) * a_row + (k - 1) * a_col < a.len());
    assert!((k - 1) * b_row + (n - 1) * b_col < b.len());
    let parallelism = if threads.0 > 1 && m * n * k >= MIN_GEMM_PARALLEL {
        gemm::Parallelism::Rayon(threads.0)
    } else {
        gemm::Parallelism::None
    };
    let mut multiply = |parallelism| {
        // SAFETY: the three assertions above bound the last element that each operand touches, all
        // strides are non-negative, and `dst` is borrowed mutably, so it aliases neither operand.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                dst.as_mut_ptr(),
                1,
                dst_stride as isize,
                accumulate,
                a.as_ptr(),
                a_col as isize,
                a_row as isize,
                b.as_ptr(),
                b_col as isize,
                b_row as isize,
                1.0,
                scale,
                false,
                false,
                false,
                parallelism,
            );
        }
    };
    match parallelism {
        gemm::Parallelism::Rayon(_) if background::is_background() => match background::pool() {
            Some(pool) => pool.install(|| multiply(parallelism)),
            None => multiply(gemm::Parallelism::None),
        },
        _ => multiply(parallelism),
    }
}

/// Up to this many rows the weight is read in place, for all rows at once; the library copies it first, which pays off
/// only for more rows.
const SMALL_BATCH: usize = 64;

/// Weights with at most this many values are read in place however many rows there are: those of an adapter are so
/// narrow that the copy costs more than it saves.
const SMALL_WEIGHT: usize = 16 << 10;

/// Up to this many rows [`matmul`] works row by row.
const AXPY_ROWS: usize = 6;

/// `y (+)= scale * x wᵀ` for `x [rows, inner]`, `w [out, inner]`; `y` rows are `y_stride` apart.
pub(crate) fn forward(
    y: &mut [f32],
    y_stride: usize,
    x: Mat<'_>,
    w: Mat<'_>,
    accumulate: bool,
    scale: f32,
    threads: Threads,
) {
    assert_eq!(x.cols, w.cols);
    if let Some(packed) = w.packed {
        forward_packed(y, y_stride, x, packed, (accumulate, scale), threads);
        return;
    }
    if x.rows <= SMALL_BATCH || w.rows * w.cols <= SMALL_WEIGHT {
        SCRATCH.with_borrow_mut(|scratch| {
            forward_small_batch(y, y_stride, x, w, (accumulate, scale), threads, scratch);
        });
        return;
    }
    gemm(
        y,
        y_stride,
        (x.rows, w.rows, x.cols),
        x.data,
        (x.stride, 1),
        w.data,
        (1, w.stride),
        accumulate,
        scale,
        threads,
    );
}

/// [`forward`] with a packed weight, parallel over tiles.
fn forward_packed(
    y: &mut [f32],
    y_stride: usize,
    x: Mat<'_>,
    w: &PackedWeights,
    (accumulate, scale): (bool, f32),
    threads: Threads,
) {
    let (outputs, inner) = w.shape();
    if x.rows == 0 || outputs == 0 {
        return;
    }
    assert!(outputs <= y_stride && (x.rows - 1) * y_stride + outputs <= y.len());
    let part_size = w.count().div_ceil(threads.0.max(1) * PARTS_PER_THREAD);
    let parts = w.count().div_ceil(part_size);
    let out = OutputPtr(y.as_mut_ptr());
    thread_pool::parallel_for(threads, parts, x.rows * outputs * inner, &|part| {
        let tiles = part * part_size..w.count().min((part + 1) * part_size);
        w.multiply(
            (x.data, x.stride),
            x.rows,
            tiles,
            #[inline(always)]
            |output, count, row, tile| {
                for (r, results) in tile.iter().enumerate() {
                    for (o, result) in results.iter().enumerate().take(count) {
                        // SAFETY: `row + r` is below `x.rows` and `output + o` below `outputs`, so the assertion above
                        // bounds the index. Each part has its own outputs, and they are below `y_stride`, which keeps
                        // rows apart, so no other part writes to it. `y` stays borrowed until all parts have ended.
                        unsafe {
                            let slot = out.at((row + r) * y_stride + output + o);
                            let value = scale * result;
                            *slot = if accumulate { *slot + value } else { value };
                        }
                    }
                }
            },
        );
    });
}

thread_local! {
    /// The scratch buffer of [`forward_small_batch`], reused between calls.
    static SCRATCH: RefCell<Vec<InputVector>> = const { RefCell::new(Vec::new()) };
}

/// Parts of a product per thread, so that a late thread still finds work.
const PARTS_PER_THREAD: usize = 4;

/// [`forward`] for a small batch, parallel over outputs.
fn forward_small_batch(
    y: &mut [f32],
    y_stride: usize,
    x: Mat<'_>,
    w: Mat<'_>,
    (accumulate, scale): (bool, f32),
    threads: Threads,
    scratch: &mut Vec<InputVector>,
) {
    if x.rows == 0 || w.rows == 0 {
        return;
    }
    assert!(w.rows <= y_stride && (x.rows - 1) * y_stride + w.rows <= y.len());
    let rows = BatchRows::new((x.data, x.stride), (x.rows, x.cols), scratch);
    let part_size = w
        .rows
        .div_ceil(threads.0.max(1) * PARTS_PER_THREAD)
        .next_multiple_of(TILE_OUTPUTS);
    let parts = w.rows.div_ceil(part_size);
    let out = OutputPtr(y.as_mut_ptr());
    thread_pool::parallel_for(threads, parts, x.rows * w.rows * w.cols, &|part| {
        let outputs = part * part_size..w.rows.min((part + 1) * part_size);
        let end = outputs.end;
        rows.multiply(
            w.data,
            w.stride,
            outputs,
            #[inline(always)]
            |output, row, count, tile| {
                for r in 0..count {
                    for (o, results) in (output..end).zip(tile) {
                        // SAFETY: `row + r` is below `x.rows` and `o` below `w.rows`, so the assertion above bounds the
                        // index. Each part has its own outputs, and `o < y_stride` keeps rows apart, so no other part
                        // writes to it. `y` stays borrowed until all parts have ended.
                        unsafe {
                            let slot = out.at((row + r) * y_stride + o);
                            let value = scale * results[r];
                            *slot = if accumulate { *slot + value } else { value };
                        }
                    }
                }
            },
        );
    });
}

/// The output buffer that the parts of a product write, each to its own elements.
#[derive(Clone, Copy)]
struct OutputPtr(*mut f32);

// SAFETY: parts write disjoint elements through it; see `forward_small_batch`.
unsafe impl Sync for OutputPtr {}

impl OutputPtr {
    /// # Safety
    /// The index is inside the buffer.
    #[inline(always)]
    unsafe fn at(&self, index: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(index) }
    }
}

/// `y (+)= scale * a b` for `a [m, k]`, `b [k, n]`; `y` rows are `y_stride` apart. With `a = dy` and `b = w`
/// this is the gradient of [`forward`] with respect to its input.
pub(crate) fn matmul(
    y: &mut [f32],
    y_stride: usize,
    a: Mat<'_>,
    b: Mat<'_>,
    accumulate: bool,
    scale: f32,
    threads: Threads,
) {
    assert_eq!(a.cols, b.rows);
    if a.rows <= AXPY_ROWS && (threads.0 <= 1 || a.rows * a.cols * b.cols < MIN_GEMM_PARALLEL) {
        simd::vectorized(
            #[inline(always)]
            || {
                for r in 0..a.rows {
                    let y = &mut y[r * y_stride..r * y_stride + b.cols];
                    if !accumulate {
                        y.fill(0.0);
                    }
                    for l in 0..a.cols {
                        let factor = scale * a.data[r * a.stride + l];
                        simd::axpy(y, factor, &b.data[l * b.stride..l * b.stride + b.cols]);
                    }
                }
            },
        );
        return;
    }
    gemm(
        y,
        y_stride,
        (a.rows, b.cols, a.cols),
        a.data,
        (a.stride, 1),
        b.data,
        (b.stride, 1),
        accumulate,
        scale,
        threads,
    );
}

/// `y (+)= scale * aᵀ b` for `a [k, m]`, `b [k, n]`; `y` rows are `y_stride` apart. With `a = dy` and `b = x`
/// this is the gradient of [`forward`] with respect to its weight.
pub(crate) fn matmul_at_b(
    y: &mut [f32],
    y_stride: usize,
    a: Mat<'_>,
    b: Mat<'_>,
    accumulate: bool,
    scale: f32,
    threads: Threads,
) {
    assert_eq!(a.rows, b.rows);
    gemm(
        y,
        y_stride,
        (a.cols, b.cols, a.rows),
        a.data,
        (1, a.stride),
        b.data,
        (b.stride, 1),
        accumulate,
        scale,
        threads,
    );
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
