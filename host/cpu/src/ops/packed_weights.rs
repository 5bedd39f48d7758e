//! A second copy of a weight, packed in the order in which a product reads it: tiles of [`TILE_OUTPUTS`] outputs, and
//! within a tile the weights of one input next to each other. Outputs lie across the SIMD lanes, and input rows are
//! read in place, without transposing or gathering.
//!
//! Every result is the sum of its products in input order, independent of the other rows: a sequence gets the same bits
//! alone, in a batch, during prefill and in training.

use std::ops::Range;

use pulp::{Simd, WithSimd};

/// Outputs per tile.
pub(super) const TILE_OUTPUTS: usize = 32;

/// Maximum number of rows multiplied at once with 32 vector registers, and with 16.
const MAX_ROWS: usize = 8;
const MAX_ROWS_16_REGISTERS: usize = 4;

/// Tiles multiplied at once for one row (half as many for two rows).
const TILES_AT_ONCE: usize = 4;

/// Vectors of a tile that are accumulated at once.
const VECTORS_AT_ONCE: usize = 2;

/// The weights of one input in a tile.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct WeightVector([f32; TILE_OUTPUTS]);

/// A weight `[outputs, inner]`, packed in tiles.
#[derive(Debug, Clone)]
pub(crate) struct PackedWeights {
    /// `[tiles][inner]`; values beyond the last output are zero.
    vectors: Vec<WeightVector>,
    outputs: usize,
    inner: usize,
}

/// Results: one row of outputs per input row.
pub(super) type OutputTile = [[f32; TILE_OUTPUTS]];

/// Number of vectors of a weight.
fn vector_count((outputs, inner): (usize, usize)) -> usize {
    outputs.div_ceil(TILE_OUTPUTS) * inner
}

impl PackedWeights {
    /// Packs a row-major weight.
    ///
    /// # Panics
    /// When `w` does not have `outputs * inner` values.
    pub(crate) fn new(w: &[f32], (outputs, inner): (usize, usize)) -> Self {
        assert_eq!(w.len(), outputs * inner);
        let mut vectors = vec![WeightVector([0.0; TILE_OUTPUTS]); vector_count((outputs, inner))];
        if inner > 0 {
            let tiles = vectors.chunks_exact_mut(inner);
            for (tile, w) in tiles.zip(w.chunks(TILE_OUTPUTS * inner)) {
                for (o, w) in w.chunks_exact(inner).enumerate() {
                    for (vector, w) in tile.iter_mut().zip(w) {
                        vector.0[o] = *w;
                    }
                }
            }
        }
        Self {
            vectors,
            outputs,
            inner,
        }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.vectors.as_slice())
    }

    /// Size in bytes of a weight of this shape.
    pub(crate) fn planned_bytes((outputs, inner): (usize, usize)) -> usize {
        vector_count((outputs, inner)) * size_of::<WeightVector>()
    }

    /// Number of tiles.
    pub(super) fn count(&self) -> usize {
        self.outputs.div_ceil(TILE_OUTPUTS)
    }

    /// `(outputs, inputs)`.
    pub(super) fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inner)
    }

    /// Multiplies `rows` rows of `x`, `stride` apart, with a range of tiles, and passes the results to `store` tile by
    /// tile: first output, number of outputs, first row, and the results.
    pub(super) fn multiply(
        &self,
        (x, stride): (&[f32], usize),
        rows: usize,
        tiles: Range<usize>,
        store: impl FnMut(usize, usize, usize, &OutputTile),
    ) {
        pulp::Arch::new().dispatch(Product {
            weight: self,
            x,
            stride,
            rows,
            tiles,
            store,
        });
    }

    #[inline(always)]
    fn tile(&self, index: usize) -> &[WeightVector] {
        &self.vectors[index * self.inner..][..self.inner]
    }
}

struct Product<'a, F> {
    weight: &'a PackedWeights,
    x: &'a [f32],
    stride: usize,
    rows: usize,
    tiles: Range<usize>,
    store: F,
}

impl<F: FnMut(usize, usize, usize, &OutputTile)> WithSimd for Product<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let max_rows = if S::F32_LANES >= 16 {
            MAX_ROWS
        } else {
            MAX_ROWS_16_REGISTERS
        };
        while self.rows == 1 && self.tiles.len() >= TILES_AT_ONCE {
            self.step::<S, 1, TILES_AT_ONCE>(simd, 0);
            self.tiles.start += TILES_AT_ONCE;
        }
        while self.rows == 2 && self.tiles.len() >= TILES_AT_ONCE / 2 {
            self.step::<S, 2, { TILES_AT_ONCE / 2 }>(simd, 0);
            self.tiles.start += TILES_AT_ONCE / 2;
        }
        while !self.tiles.is_empty() {
            let mut row = 0;
            while row < self.rows {
                let count = max_rows.min(self.rows - row);
                match count {
                    1 => self.step::<S, 1, 1>(simd, row),
                    2 => self.step::<S, 2, 1>(simd, row),
                    3 => self.step::<S, 3, 1>(simd, row),
                    4 => self.step::<S, 4, 1>(simd, row),
                    5 => self.step::<S, 5, 1>(simd, row),
                    6 => self.step::<S, 6, 1>(simd, row),
                    7 => self.step::<S, 7, 1>(simd, row),
                    _ => self.step::<S, MAX_ROWS, 1>(simd, row),
                }
                row += count;
            }
            self.tiles.start += 1;
        }
    }
}

impl<F: FnMut(usize, usize, usize, &OutputTile)> Product<'_, F> {
    /// Multiplies `R` rows starting at `row` with the next `P` tiles.
    #[inline(always)]
    fn step<S: Simd, const R: usize, const P: usize>(&mut self, simd: S, row: usize) {
        let first = self.tiles.start;
        let inner = self.weight.inner;
        let weights: [&[WeightVector]; P] = std::array::from_fn(|p| self.weight.tile(first + p));
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.x[(row + r) * self.stride..][..inner]);
        let mut outputs = [[[0f32; TILE_OUTPUTS]; R]; P];
        product(simd, x, weights, &mut outputs);
        for (p, tile) in outputs.iter().enumerate() {
            let output = (first + p) * TILE_OUTPUTS;
            let count = TILE_OUTPUTS.min(self.weight.outputs - output);
            (self.store)(output, count, row, tile);
        }
    }
}

/// Multiplies `R` rows with `P` tiles.
#[inline(always)]
fn product<S: Simd, const R: usize, const P: usize>(
    simd: S,
    x: [&[f32]; R],
    weights: [&[WeightVector]; P],
    outputs: &mut [[[f32; TILE_OUTPUTS]; R]; P],
) {
    // Loops instead of closures: closures called by the library are compiled without the vector instructions.
    let Some(inner) = weights.first().map(|tile| tile.len()) else {
        return;
    };
    let mut x = x;
    for row in &mut x {
        *row = &row[..inner];
    }
    let mut weights = weights;
    for tile in &mut weights {
        *tile = &tile[..inner];
    }
    for strip in (0..TILE_OUTPUTS / S::F32_LANES).step_by(VECTORS_AT_ONCE) {
        let mut sums = [[[simd.splat_f32s(0.0); VECTORS_AT_ONCE]; R]; P];
        for k in 0..inner {
            for p in 0..P {
                let w = &S::as_simd_f32s(&weights[p][k].0).0[strip..][..VECTORS_AT_ONCE];
                for r in 0..R {
                    let factor = simd.splat_f32s(x[r][k]);
                    for v in 0..VECTORS_AT_ONCE {
                        sums[p][r][v] = simd.mul_add_f32s(factor, w[v], sums[p][r][v]);
                    }
                }
            }
        }
        for p in 0..P {
            for r in 0..R {
                let tile =
                    &mut S::as_mut_simd_f32s(&mut outputs[p][r]).0[strip..][..VECTORS_AT_ONCE];
                tile.copy_from_slice(&sums[p][r]);
            }
        }
    }
}
