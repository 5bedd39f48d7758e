//! Dense products of row-major matrices: `x` is `[rows, inner]`, a weight is `[out, inner]` as in Hugging Face
//! checkpoints, so `y = x wᵀ`.
//!
//! Small batches (decoding) go to `small_batch`, which reads each weight once and in place; all else goes to `gemm`.

#![allow(
    unsafe_code,
    reason = "parts of a product write columns of one buffer; see `forward_small_batch` and `forward_packed` below"
)]

use std::cell::RefCell;
use std::ops::Range;

use super::gemm::{Operand, gemm};
use super::packed_weights::PackedWeights;
use super::quantized;
use super::simd;
use super::small_batch::{BatchRows, InputVector, TILE_OUTPUTS, Tile};
use super::thread_pool::{self, Threads};
use clawhost_model::QuantizedWeight;

/// A view of a row-major matrix inside a larger buffer.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
    packed: Option<&'a PackedWeights>,
    /// The values instead of `data`, which is empty then.
    quantized: Option<&'a QuantizedWeight>,
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
            quantized: None,
        }
    }

    /// A weight of a model: `quantized` if there is one, else the dense `data`. As a factor of a product it may only be
    /// the weight.
    pub(crate) fn weight(
        data: &'a [f32],
        quantized: Option<&'a QuantizedWeight>,
        rows: usize,
        cols: usize,
    ) -> Self {
        let Some(quantized) = quantized else {
            return Self::new(data, rows, cols);
        };
        assert_eq!(quantized.shape(), (rows, cols));
        Self {
            data: &[],
            rows,
            cols,
            stride: cols,
            packed: None,
            quantized: Some(quantized),
        }
    }

    /// `(rows, columns)`.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Adds a packed copy of the weight, which [`forward`] prefers.
    pub(crate) fn with_packed(self, packed: Option<&'a PackedWeights>) -> Self {
        assert!(packed.is_none_or(|packed| packed.shape() == (self.rows, self.cols)));
        Self { packed, ..self }
    }

    /// The rows of a range; without the packed copy.
    pub(crate) fn row_range(self, rows: Range<usize>) -> Self {
        let data = &self.data[rows.start * self.stride..];
        Self::strided(data, rows.len(), self.cols, self.stride)
    }

    /// One row.
    pub(crate) fn row(self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.cols]
    }

    /// Number of rows.
    pub(crate) fn rows(self) -> usize {
        self.rows
    }

    pub(crate) fn is_packed(self) -> bool {
        self.packed.is_some()
    }

    fn operand(self) -> Operand<'a> {
        Operand {
            data: self.data,
            row: self.stride,
            col: 1,
        }
    }

    fn transposed(self) -> Operand<'a> {
        Operand {
            data: self.data,
            row: 1,
            col: self.stride,
        }
    }
}

/// Up to this many rows the weight is read in place, for all rows at once; `gemm` copies it first, which pays off only for
/// more rows.
const SMALL_BATCH: usize = 64;

/// Up to this many rows [`matmul`] works row by row.
const AXPY_ROWS: usize = 6;

/// Minimum number of multiply-adds for which such a product is worth several threads.
const MIN_PARALLEL: usize = 4 << 20;

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
    if x.rows <= SMALL_BATCH {
        SCRATCH.with_borrow_mut(|scratch| {
            forward_small_batch(y, y_stride, x, w, (accumulate, scale), threads, scratch);
        });
        return;
    }
    let mut product = |outputs: Range<usize>, w: Mat<'_>| {
        gemm(
            (&mut y[outputs.start..], y_stride),
            (x.rows, outputs.len(), x.cols),
            x.operand(),
            w.transposed(),
            (accumulate, scale),
            threads,
        );
    };
    match w.quantized {
        None => product(0..w.rows, w),
        Some(weight) => quantized::for_each_part(weight, threads, |outputs, rows| {
            let part = Mat::new(rows, outputs.len(), w.cols);
            product(outputs, part);
        }),
    }
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
        multiply_batch(
            &rows,
            w,
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

/// [`BatchRows::multiply`] with a range of outputs of a weight, dense or quantized.
#[inline(always)]
fn multiply_batch(
    rows: &BatchRows<'_>,
    w: Mat<'_>,
    outputs: Range<usize>,
    store: impl FnMut(usize, usize, usize, &Tile),
) {
    match w.quantized {
        None => rows.multiply(w.data, w.stride, outputs, store),
        Some(weight) => quantized::multiply(rows, weight, outputs, store),
    }
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
    if let Some(weight) = b.quantized {
        quantized::for_each_part(weight, threads, |outputs, rows| {
            let part = Mat::new(rows, outputs.len(), b.cols);
            let a = Mat::strided(&a.data[outputs.start..], a.rows, outputs.len(), a.stride);
            gemm(
                (&mut *y, y_stride),
                (a.rows, b.cols, outputs.len()),
                a.operand(),
                part.operand(),
                (accumulate || outputs.start > 0, scale),
                threads,
            );
        });
        return;
    }
    if a.rows <= AXPY_ROWS && (threads.0 <= 1 || a.rows * a.cols * b.cols < MIN_PARALLEL) {
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
        (y, y_stride),
        (a.rows, b.cols, a.cols),
        a.operand(),
        b.operand(),
        (accumulate, scale),
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
        (y, y_stride),
        (a.cols, b.cols, a.rows),
        a.transposed(),
        b.operand(),
        (accumulate, scale),
        threads,
    );
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
