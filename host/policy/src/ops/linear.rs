//! Dense products of row-major matrices: `x` is `[rows, inner]`, a weight is `[out, inner]` as in
//! Hugging Face checkpoints, so `y = x wᵀ`.
//!
//! The one place that calls the GEMM library through raw pointers. Small row counts (decoding) go to
//! `rows`, which reads each weight once and where it lies.

#![allow(
    unsafe_code,
    reason = "the GEMM library takes raw pointers, and parts of a product write columns of one buffer; every \
              such call goes through `gemm` or `few` below"
)]

use std::cell::RefCell;

use super::panels::Panels;
use super::rows::{Lane, Rows, TILE};
use super::{simd, team};
use crate::background;

/// A view of a row-major matrix inside a larger buffer.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
    panels: Option<&'a Panels>,
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
            panels: None,
        }
    }

    /// The same matrix as a weight that [`forward`] may also read in panels.
    pub(crate) fn or_in(self, panels: Option<&'a Panels>) -> Self {
        assert!(panels.is_none_or(|panels| panels.shape() == (self.rows, self.cols)));
        Self { panels, ..self }
    }
}

/// How much of the machine one product may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Threads(pub(crate) usize);

/// Products below this many multiply-adds are not worth waking another thread for.
const PARALLEL_FROM: usize = 4 << 20;

/// `dst = keep * dst + scale * op(a) op(b)`, where `op` transposes when asked.
/// `dst` is `[m, n]` with rows `dst_stride` apart.
#[allow(clippy::too_many_arguments, reason = "the argument list of every GEMM")]
fn gemm(
    dst: &mut [f32],
    dst_stride: usize,
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    (a_row, a_col): (usize, usize),
    b: &[f32],
    (b_row, b_col): (usize, usize),
    keep: bool,
    scale: f32,
    threads: Threads,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= dst_stride && (m - 1) * dst_stride + n <= dst.len());
    if k == 0 {
        if !keep {
            for row in dst.chunks_mut(dst_stride).take(m) {
                row[..n].fill(0.0);
            }
        }
        return;
    }
    assert!((m - 1) * a_row + (k - 1) * a_col < a.len());
    assert!((k - 1) * b_row + (n - 1) * b_col < b.len());
    let parallelism = if threads.0 > 1 && m * n * k >= PARALLEL_FROM {
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
                keep,
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
        gemm::Parallelism::Rayon(_) if background::is_behind() => match background::pool() {
            Some(pool) => pool.install(|| multiply(parallelism)),
            None => multiply(gemm::Parallelism::None),
        },
        _ => multiply(parallelism),
    }
}

/// Rows up to which a weight is read where it lies, for all of them at once; the library copies it first,
/// which pays for many.
const FEW: usize = 64;

/// Numbers of a weight up to which it is read where it lies however many rows there are: that of an adapter is so
/// narrow that copying costs more than it saves.
const NEAR: usize = 16 << 10;

/// Rows up to which [`product`] goes row by row.
const DOT_ROWS: usize = 6;

/// `y (+)= scale * x wᵀ` for `x [rows, inner]`, `w [out, inner]`; `y` rows are `y_stride` apart.
pub(crate) fn forward(
    y: &mut [f32],
    y_stride: usize,
    x: Mat<'_>,
    w: Mat<'_>,
    keep: bool,
    scale: f32,
    threads: Threads,
) {
    assert_eq!(x.cols, w.cols);
    if let Some(panels) = w.panels {
        in_panels(y, y_stride, x, panels, (keep, scale), threads);
        return;
    }
    if x.rows <= FEW || w.rows * w.cols <= NEAR {
        SCRATCH.with_borrow_mut(|scratch| {
            few(y, y_stride, x, w, (keep, scale), threads, scratch);
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
        keep,
        scale,
        threads,
    );
}

/// [`forward`] with a weight in panels, over the team in portions of panels.
fn in_panels(
    y: &mut [f32],
    y_stride: usize,
    x: Mat<'_>,
    w: &Panels,
    (keep, scale): (bool, f32),
    threads: Threads,
) {
    let (outputs, inner) = w.shape();
    if x.rows == 0 || outputs == 0 {
        return;
    }
    assert!(outputs <= y_stride && (x.rows - 1) * y_stride + outputs <= y.len());
    let portion = w.count().div_ceil(threads.0.max(1) * PORTIONS);
    let parts = w.count().div_ceil(portion);
    let out = Out(y.as_mut_ptr());
    team::each(threads, parts, x.rows * outputs * inner, &|part| {
        let panels = part * portion..w.count().min((part + 1) * portion);
        w.multiply(
            (x.data, x.stride),
            x.rows,
            panels,
            #[inline(always)]
            |output, count, row, tile| {
                for (r, results) in tile.iter().enumerate() {
                    for (o, result) in results.iter().enumerate().take(count) {
                        // SAFETY: `row + r` is below `x.rows` and `output + o` below `outputs`, so the assertion
                        // above bounds the place. Each part has outputs of its own, and they are below
                        // `y_stride`, which keeps rows apart: no other part touches it. `y` stays borrowed until
                        // all have ended.
                        unsafe {
                            let slot = out.at((row + r) * y_stride + output + o);
                            let value = scale * result;
                            *slot = if keep { *slot + value } else { value };
                        }
                    }
                }
            },
        );
    });
}

thread_local! {
    /// Rows laid out for [`few`], kept from call to call.
    static SCRATCH: RefCell<Vec<Lane>> = const { RefCell::new(Vec::new()) };
}

/// Portions of a product for each thread, so that one that comes late finds something to do.
const PORTIONS: usize = 4;

/// [`forward`] for a few rows, over the team in portions of outputs.
fn few(
    y: &mut [f32],
    y_stride: usize,
    x: Mat<'_>,
    w: Mat<'_>,
    (keep, scale): (bool, f32),
    threads: Threads,
    scratch: &mut Vec<Lane>,
) {
    if x.rows == 0 || w.rows == 0 {
        return;
    }
    assert!(w.rows <= y_stride && (x.rows - 1) * y_stride + w.rows <= y.len());
    let rows = Rows::new((x.data, x.stride), (x.rows, x.cols), scratch);
    let portion = w
        .rows
        .div_ceil(threads.0.max(1) * PORTIONS)
        .next_multiple_of(TILE);
    let parts = w.rows.div_ceil(portion);
    let out = Out(y.as_mut_ptr());
    team::each(threads, parts, x.rows * w.rows * w.cols, &|part| {
        let outputs = part * portion..w.rows.min((part + 1) * portion);
        let end = outputs.end;
        rows.multiply(
            w.data,
            w.stride,
            outputs,
            #[inline(always)]
            |output, row, count, tile| {
                for r in 0..count {
                    for (o, results) in (output..end).zip(tile) {
                        // SAFETY: `row + r` is below `x.rows` and `o` below `w.rows`, so the assertion above
                        // bounds the place. Each part has outputs of its own, and `o < y_stride` keeps
                        // rows apart: no other part touches it. `y` stays borrowed until all have ended.
                        unsafe {
                            let slot = out.at((row + r) * y_stride + o);
                            let value = scale * results[r];
                            *slot = if keep { *slot + value } else { value };
                        }
                    }
                }
            },
        );
    });
}

/// Where the parts of a product write, each to places of its own.
#[derive(Clone, Copy)]
struct Out(*mut f32);

// SAFETY: it is only written through, by parts that share no place; see `few`.
unsafe impl Sync for Out {}

impl Out {
    /// # Safety
    /// The place is inside the buffer.
    #[inline(always)]
    unsafe fn at(&self, index: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(index) }
    }
}

/// `y (+)= scale * a b` for `a [m, k]`, `b [k, n]`; `y` rows are `y_stride` apart. With `a = dy` and `b = w`
/// this is the gradient of [`forward`] with respect to its input.
pub(crate) fn product(
    y: &mut [f32],
    y_stride: usize,
    a: Mat<'_>,
    b: Mat<'_>,
    keep: bool,
    scale: f32,
    threads: Threads,
) {
    assert_eq!(a.cols, b.rows);
    if a.rows <= DOT_ROWS && (threads.0 <= 1 || a.rows * a.cols * b.cols < PARALLEL_FROM) {
        simd::vectorised(
            #[inline(always)]
            || {
                for r in 0..a.rows {
                    let y = &mut y[r * y_stride..r * y_stride + b.cols];
                    if !keep {
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
        keep,
        scale,
        threads,
    );
}

/// `y (+)= scale * aᵀ b` for `a [k, m]`, `b [k, n]`; `y` rows are `y_stride` apart. With `a = dy` and `b = x`
/// this is the gradient of [`forward`] with respect to its weight.
pub(crate) fn outer(
    y: &mut [f32],
    y_stride: usize,
    a: Mat<'_>,
    b: Mat<'_>,
    keep: bool,
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
        keep,
        scale,
        threads,
    );
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
