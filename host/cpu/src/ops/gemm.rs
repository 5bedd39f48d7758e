//! The product of two matrices of any strides: `y (+)= scale * a b`.
//!
//! `b` is copied panel by panel into the order in which the inner loop reads it (Goto and van de Geijn 2008): one panel
//! is as wide as two vectors and stays in the L2 cache, while `a` is read in place, one value for all lanes. Every result
//! is the sum of its products in the same order for any number of rows and threads.

#![allow(
    unsafe_code,
    reason = "the inner loop reads `a` through strided pointers, and parallel parts write disjoint tiles of one buffer"
)]

use std::cell::Cell;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::thread_pool::{self, Threads};

/// Vectors per panel.
const VECTORS: usize = 2;

/// Rows multiplied at once with 32 vector registers, and with 16.
const MAX_ROWS: usize = 12;
const MAX_ROWS_16_REGISTERS: usize = 6;

/// Maximum number of values of the inner dimension for which a panel is packed at once.
const MAX_DEPTH: usize = 1024;

/// Values of a column that are packed at once.
const PACK_RUN: usize = 64;

/// Maximum lanes of a vector.
const MAX_LANES: usize = 16;

/// Columns of the widest panel.
const MAX_PANEL: usize = VECTORS * MAX_LANES;

/// Parts of a product per thread, so that a late thread still finds work.
const PARTS_PER_THREAD: usize = 4;

/// Minimum number of rows of a part: each part packs its panels itself.
const MIN_PART_ROWS: usize = 48;

/// An operand: value `(i, j)` is at `i * row + j * col`.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) col: usize,
}

impl Operand<'_> {
    pub(super) fn assert_contains(&self, rows: usize, cols: usize) {
        assert!((rows - 1) * self.row + (cols - 1) * self.col < self.data.len());
    }
}

/// `y (+)= scale * a b` for `y [m, n]` with rows `y_stride` apart, `a [m, k]` and `b [k, n]`; with `accumulate` the
/// product is added to `y`, otherwise `y` is overwritten.
pub(super) fn gemm(
    (y, y_stride): (&mut [f32], usize),
    (m, n, k): (usize, usize, usize),
    a: Operand<'_>,
    b: Operand<'_>,
    (accumulate, scale): (bool, f32),
    threads: Threads,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= y_stride && (m - 1) * y_stride + n <= y.len());
    if k == 0 {
        if !accumulate {
            for row in y.chunks_mut(y_stride).take(m) {
                row[..n].fill(0.0);
            }
        }
        return;
    }
    a.assert_contains(m, k);
    b.assert_contains(k, n);
    let out = Output::new(y, y_stride);
    let parts = Parts::new((m, n), threads);
    thread_pool::parallel_for(threads, parts.count(), m * n * k, &|part| {
        let (rows, cols) = parts.part(part);
        let part = Part {
            rows,
            cols,
            depth: k,
            a,
            b,
            out,
            accumulate,
            scale,
        };
        pulp::Arch::new().dispatch(part);
    });
}

/// How the output is divided between threads.
pub(super) struct Parts {
    size: (usize, usize),
    part_rows: usize,
    part_cols: usize,
}

impl Parts {
    /// Divides an output of `size` rows and columns. Parts of whole panels need no second packing; a narrow output is
    /// divided by rows instead.
    pub(super) fn new(size: (usize, usize), threads: Threads) -> Self {
        let (m, n) = size;
        let wanted = threads.0.max(1) * PARTS_PER_THREAD;
        let (part_rows, part_cols) = if threads.0 <= 1 {
            size
        } else if n >= wanted * MAX_PANEL || m < 2 * MIN_PART_ROWS {
            (m, n.div_ceil(wanted).next_multiple_of(MAX_PANEL))
        } else {
            let rows = m.div_ceil(wanted).max(MIN_PART_ROWS);
            (rows.next_multiple_of(MAX_ROWS), n)
        };
        Self {
            size,
            part_rows,
            part_cols,
        }
    }

    pub(super) fn count(&self) -> usize {
        let (m, n) = self.size;
        m.div_ceil(self.part_rows) * n.div_ceil(self.part_cols)
    }

    /// Rows and columns of a part.
    pub(super) fn part(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let (m, n) = self.size;
        let cols = n.div_ceil(self.part_cols);
        let (row, col) = (index / cols * self.part_rows, index % cols * self.part_cols);
        (
            row..m.min(row + self.part_rows),
            col..n.min(col + self.part_cols),
        )
    }
}

/// The output, of which each part writes its own tiles.
#[derive(Clone, Copy)]
pub(super) struct Output {
    y: *mut f32,
    stride: usize,
}

// SAFETY: parts write disjoint elements through it, within the mutable borrow of `gemm`.
unsafe impl Sync for Output {}

// SAFETY: as above.
unsafe impl Send for Output {}

impl Output {
    pub(super) fn new(y: &mut [f32], stride: usize) -> Self {
        Self {
            y: y.as_mut_ptr(),
            stride,
        }
    }

    /// # Safety
    /// The position is inside the buffer.
    #[inline(always)]
    pub(super) unsafe fn at(self, row: usize, col: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.y.add(row * self.stride + col) }
    }
}

/// One part of a product. Rows, columns and depth lie inside the operands and the output.
struct Part<'a> {
    rows: Range<usize>,
    cols: Range<usize>,
    depth: usize,
    a: Operand<'a>,
    b: Operand<'a>,
    out: Output,
    accumulate: bool,
    scale: f32,
}

thread_local! {
    /// The packed panel of a thread.
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut panel = PANEL.take();
        let blocks = self.depth.div_ceil(MAX_DEPTH);
        let block = self.depth.div_ceil(blocks);
        for from in (0..self.depth).step_by(block) {
            let depth = from..self.depth.min(from + block);
            let mut col = self.cols.start;
            while col < self.cols.end {
                let left = self.cols.end - col;
                let tile = Tile {
                    col,
                    cols: left.min(VECTORS * S::F32_LANES),
                    depth: depth.clone(),
                    accumulate: self.accumulate || from > 0,
                };
                if left > S::F32_LANES {
                    self.multiply_panel::<S, VECTORS>(simd, &tile, &mut panel);
                } else {
                    self.multiply_panel::<S, 1>(simd, &tile, &mut panel);
                }
                col += tile.cols;
            }
        }
        PANEL.set(panel);
    }
}

/// Columns of one panel, and a range of the inner dimension.
struct Tile {
    col: usize,
    cols: usize,
    depth: Range<usize>,
    accumulate: bool,
}

impl Part<'_> {
    /// Packs a panel of `V` vectors and multiplies all rows with it.
    #[inline(always)]
    fn multiply_panel<S: Simd, const V: usize>(&self, simd: S, tile: &Tile, panel: &mut Vec<f32>) {
        let width = V * S::F32_LANES;
        self.pack(tile, width, panel);
        let mut row = self.rows.start;
        let max_rows = if S::F32_LANES >= 16 {
            MAX_ROWS
        } else {
            MAX_ROWS_16_REGISTERS
        };
        while row < self.rows.end {
            let left = max_rows.min(self.rows.end - row);
            row += match left {
                1 => self.multiply_rows::<S, V, 1>(simd, tile, panel, row),
                2 | 3 => self.multiply_rows::<S, V, 2>(simd, tile, panel, row),
                4 | 5 => self.multiply_rows::<S, V, 4>(simd, tile, panel, row),
                6 | 7 => self.multiply_rows::<S, V, 6>(simd, tile, panel, row),
                8..MAX_ROWS => self.multiply_rows::<S, V, 8>(simd, tile, panel, row),
                _ => self.multiply_rows::<S, V, MAX_ROWS>(simd, tile, panel, row),
            };
        }
    }

    /// Copies the panel of a tile: the values of one inner index next to each other, padded with zeros.
    #[inline(always)]
    fn pack(&self, tile: &Tile, width: usize, panel: &mut Vec<f32>) {
        let depth = tile.depth.len();
        panel.resize(depth * width, 0.0);
        let Operand { data, row, col } = self.b;
        let source = &data[tile.depth.start * row + tile.col * col..];
        if col == 1 {
            for (k, lanes) in panel.chunks_exact_mut(width).enumerate() {
                let (lanes, padding) = lanes.split_at_mut(tile.cols);
                lanes.copy_from_slice(&source[k * row..][..tile.cols]);
                padding.fill(0.0);
            }
            return;
        }
        // Short runs of each column, so that the lines they are scattered to stay in the L1 cache.
        for (run, panel) in panel.chunks_mut(PACK_RUN * width).enumerate() {
            let from = run * PACK_RUN;
            for j in 0..tile.cols {
                let source = &source[j * col + from * row..];
                let lanes = panel.chunks_exact_mut(width);
                if row == 1 {
                    for (lanes, value) in lanes.zip(source) {
                        lanes[j] = *value;
                    }
                } else {
                    for (k, lanes) in lanes.enumerate() {
                        lanes[j] = source[k * row];
                    }
                }
            }
        }
        for lanes in panel.chunks_exact_mut(width) {
            lanes[tile.cols..].fill(0.0);
        }
    }

    /// Multiplies `R` rows, and returns their number.
    #[inline(always)]
    fn multiply_rows<S: Simd, const V: usize, const R: usize>(
        &self,
        simd: S,
        tile: &Tile,
        panel: &[f32],
        row: usize,
    ) -> usize {
        let (lanes, depth) = (S::F32_LANES, tile.depth.len());
        assert!(panel.len() == depth * V * lanes && row + R <= self.rows.end);
        let Operand {
            data,
            row: step,
            col,
        } = self.a;
        let first = row * step + tile.depth.start * col;
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        // SAFETY: `gemm` asserts that `a` has all rows of the part and the whole depth, so `first + r * step + k * col`
        // is inside it for `r < R` and `k < depth`. The panel has `depth * V` vectors by the assertion above; vectors
        // are plain values, read without alignment.
        unsafe {
            // Wrapping arithmetic is not checked in a debug build.
            let rows: [_; R] =
                std::array::from_fn(|r| data.as_ptr().wrapping_add(first + r * step));
            let mut panel = panel.as_ptr();
            let mut at = 0;
            for _ in 0..depth {
                let mut b = [simd.splat_f32s(0.0); V];
                for (v, b) in b.iter_mut().enumerate() {
                    *b = panel
                        .wrapping_add(v * lanes)
                        .cast::<S::f32s>()
                        .read_unaligned();
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat_f32s(*rows[r].wrapping_add(at));
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = simd.mul_add_f32s(factor, b, *sum);
                    }
                }
                panel = panel.wrapping_add(V * lanes);
                at = at.wrapping_add(col);
            }
        }
        let scale = simd.splat_f32s(self.scale);
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                let product = simd.mul_f32s(sum, scale);
                let count = lanes.min(tile.cols.saturating_sub(v * lanes));
                // SAFETY: the tile lies inside the output by the assertions of `gemm`, no other part writes to it, and
                // only `count` values are inside the tile. Vectors are plain values.
                unsafe {
                    let y = self.out.at(row + r, tile.col + v * lanes);
                    if count == lanes {
                        let y = y.cast::<S::f32s>();
                        y.write_unaligned(match tile.accumulate {
                            true => simd.add_f32s(y.read_unaligned(), product),
                            false => product,
                        });
                    } else {
                        let mut values = [0f32; MAX_LANES];
                        values
                            .as_mut_ptr()
                            .cast::<S::f32s>()
                            .write_unaligned(product);
                        for (c, value) in values.iter().enumerate().take(count) {
                            let y = y.add(c);
                            *y = if tile.accumulate { *y + value } else { *value };
                        }
                    }
                }
            }
        }
        R
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_integers_are_exact_for_all_layouts_and_threads() {
        let wave = |n: usize, k: usize| -> Vec<f32> {
            let value = |i: usize| (i * k % 13) as f32 - 6.0;
            (0..n).map(value).collect()
        };
        for (m, n, k) in [
            (1, 1, 1),
            (13, 33, 7),
            (25, 16, 2100),
            (97, 300, 31),
            (5, 17, 1025),
        ] {
            let (a, b) = (wave(m * k, 7), wave(n * k, 5));
            for (a_strides, b_strides) in [((k, 1), (n, 1)), ((k, 1), (1, k)), ((1, m), (n, 1))] {
                let operand = |data, (row, col)| Operand { data, row, col };
                let (a, b) = (operand(&a, a_strides), operand(&b, b_strides));
                for (accumulate, threads) in [(false, 1), (true, 3), (true, 40)] {
                    // Results lie inside wider rows, whose other values must not change.
                    let mut y = vec![2f32; m * (n + 3)];
                    let options = (accumulate, 0.5);
                    gemm((&mut y, n + 3), (m, n, k), a, b, options, Threads(threads));
                    for (i, row) in y.chunks(n + 3).enumerate() {
                        for (j, value) in row.iter().enumerate() {
                            let products = (0..k).map(|l| {
                                a.data[i * a.row + l * a.col] * b.data[l * b.row + j * b.col]
                            });
                            let right = match j < n {
                                true => {
                                    let start = if accumulate { 2.0 } else { 0.0 };
                                    start + 0.5 * products.sum::<f32>()
                                }
                                false => 2.0,
                            };
                            assert_eq!(*value, right, "{m} {n} {k} {i} {j}");
                        }
                    }
                }
            }
        }
    }
}
