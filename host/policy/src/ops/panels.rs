//! Weights a second time, in the order in which a product of any number of rows reads them: panels of [`PANEL`]
//! outputs, in each the weights of one input side by side. The outputs lie across the vector lanes, rows are read
//! where they are, and nothing is turned or gathered.
//!
//! Every result is the sum of its products in the order of the inputs, whatever rows are beside it: a conversation
//! gets the same bits alone, in a batch, as a prompt and in training.

use std::ops::Range;

use pulp::{Simd, WithSimd};

/// Outputs of a panel.
pub(super) const PANEL: usize = 32;

/// Rows that are multiplied at once where there are 32 vector registers, and where there are 16.
const ROWS: usize = 8;
const FEWER: usize = 4;

/// Sums of one or two rows that are under way at once, in panels.
const ABREAST: usize = 4;

/// Vectors of a panel that are summed up at once.
const WIDE: usize = 2;

/// The weights of one input in a panel.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Lane([f32; PANEL]);

/// A weight `[outputs, inner]` in panels.
#[derive(Debug, Clone)]
pub(crate) struct Panels {
    /// `[panels][inner]`; what is behind the last output is zero.
    lanes: Vec<Lane>,
    outputs: usize,
    inner: usize,
}

/// Results: of each row, one for each output of a panel.
pub(super) type Tile = [[f32; PANEL]];

impl Panels {
    /// Lays out a row-major weight.
    ///
    /// # Panics
    /// When `w` is not `outputs * inner` long.
    pub(crate) fn new(w: &[f32], (outputs, inner): (usize, usize)) -> Self {
        assert_eq!(w.len(), outputs * inner);
        let mut lanes = vec![Lane([0.0; PANEL]); outputs.div_ceil(PANEL) * inner];
        if inner > 0 {
            let panels = lanes.chunks_exact_mut(inner);
            for (panel, w) in panels.zip(w.chunks(PANEL * inner)) {
                for (o, w) in w.chunks_exact(inner).enumerate() {
                    for (lane, w) in panel.iter_mut().zip(w) {
                        lane.0[o] = *w;
                    }
                }
            }
        }
        Self {
            lanes,
            outputs,
            inner,
        }
    }

    /// Number of panels.
    pub(super) fn count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Outputs and inputs.
    pub(super) fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inner)
    }

    /// Multiplies `rows` rows of `x`, `stride` apart, with some panels, and hands over the results tile by tile:
    /// first output, number of outputs, first row, and the results, one row of the tile a row.
    pub(super) fn multiply(
        &self,
        (x, stride): (&[f32], usize),
        rows: usize,
        panels: Range<usize>,
        take: impl FnMut(usize, usize, usize, &Tile),
    ) {
        pulp::Arch::new().dispatch(Product {
            weight: self,
            x,
            stride,
            rows,
            panels,
            take,
        });
    }

    #[inline(always)]
    fn panel(&self, index: usize) -> &[Lane] {
        &self.lanes[index * self.inner..][..self.inner]
    }
}

struct Product<'a, F> {
    weight: &'a Panels,
    x: &'a [f32],
    stride: usize,
    rows: usize,
    panels: Range<usize>,
    take: F,
}

impl<F: FnMut(usize, usize, usize, &Tile)> WithSimd for Product<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let most = if S::F32_LANES >= 16 { ROWS } else { FEWER };
        while self.rows == 1 && self.panels.len() >= ABREAST {
            self.step::<S, 1, ABREAST>(simd, 0);
            self.panels.start += ABREAST;
        }
        while self.rows == 2 && self.panels.len() >= ABREAST / 2 {
            self.step::<S, 2, { ABREAST / 2 }>(simd, 0);
            self.panels.start += ABREAST / 2;
        }
        while !self.panels.is_empty() {
            let mut row = 0;
            while row < self.rows {
                let count = most.min(self.rows - row);
                match count {
                    1 => self.step::<S, 1, 1>(simd, row),
                    2 => self.step::<S, 2, 1>(simd, row),
                    3 => self.step::<S, 3, 1>(simd, row),
                    4 => self.step::<S, 4, 1>(simd, row),
                    5 => self.step::<S, 5, 1>(simd, row),
                    6 => self.step::<S, 6, 1>(simd, row),
                    7 => self.step::<S, 7, 1>(simd, row),
                    _ => self.step::<S, ROWS, 1>(simd, row),
                }
                row += count;
            }
            self.panels.start += 1;
        }
    }
}

impl<F: FnMut(usize, usize, usize, &Tile)> Product<'_, F> {
    /// `R` rows from `row` on with the first `P` panels that are left.
    #[inline(always)]
    fn step<S: Simd, const R: usize, const P: usize>(&mut self, simd: S, row: usize) {
        let first = self.panels.start;
        let inner = self.weight.inner;
        let panels: [&[Lane]; P] = std::array::from_fn(|p| self.weight.panel(first + p));
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.x[(row + r) * self.stride..][..inner]);
        let mut tiles = [[[0f32; PANEL]; R]; P];
        product(simd, x, panels, &mut tiles);
        for (p, tile) in tiles.iter().enumerate() {
            let output = (first + p) * PANEL;
            let count = PANEL.min(self.weight.outputs - output);
            (self.take)(output, count, row, tile);
        }
    }
}

/// Products of `R` rows with `P` panels.
#[inline(always)]
fn product<S: Simd, const R: usize, const P: usize>(
    simd: S,
    x: [&[f32]; R],
    panels: [&[Lane]; P],
    tiles: &mut [[[f32; PANEL]; R]; P],
) {
    // Loops, not closures: what the library calls back is compiled without the vector instructions.
    let Some(inner) = panels.first().map(|panel| panel.len()) else {
        return;
    };
    let mut x = x;
    for row in &mut x {
        *row = &row[..inner];
    }
    let mut panels = panels;
    for panel in &mut panels {
        *panel = &panel[..inner];
    }
    for strip in (0..PANEL / S::F32_LANES).step_by(WIDE) {
        let mut sums = [[[simd.splat_f32s(0.0); WIDE]; R]; P];
        for k in 0..inner {
            for p in 0..P {
                let w = &S::as_simd_f32s(&panels[p][k].0).0[strip..][..WIDE];
                for r in 0..R {
                    let factor = simd.splat_f32s(x[r][k]);
                    for v in 0..WIDE {
                        sums[p][r][v] = simd.mul_add_f32s(factor, w[v], sums[p][r][v]);
                    }
                }
            }
        }
        for p in 0..P {
            for r in 0..R {
                let tile = &mut S::as_mut_simd_f32s(&mut tiles[p][r]).0[strip..][..WIDE];
                tile.copy_from_slice(&sums[p][r]);
            }
        }
    }
}
