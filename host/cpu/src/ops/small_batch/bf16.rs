//! Weights in bf16: products of a few rows with them, and restoring them to f32 for other products. The values are the upper
//! halves of f32, so both give the results of f32 weights.

use std::ops::Range;

use clawhost_model::{BF16_GROUP, QuantizedWeight};
use pulp::{Simd, WithSimd};

use super::{BatchRows, PARTIAL_SUMS, Tile, dispatch_8_lanes, has_8_lanes};

/// Multiplies single rows with weights in bf16, with consecutive inputs in the lanes.
pub(super) struct Bf16InLanes<'a> {
    pub(super) rows: &'a BatchRows<'a>,
    /// The weights of the tile's outputs.
    pub(super) blocks: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) tile: &'a mut Tile,
}

impl WithSimd for Bf16InLanes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            rows,
            blocks,
            row_bytes,
            tile,
        } = self;
        let weights = |output: usize| &blocks[output * row_bytes..][..row_bytes];
        let mut at = 0;
        while at + 4 <= tile.len() {
            let w = [
                weights(at),
                weights(at + 1),
                weights(at + 2),
                weights(at + 3),
            ];
            let tile = &mut tile[at..at + 4];
            let mut row = 0;
            while row + 2 <= rows.rows {
                let x = [rows.row(row), rows.row(row + 1)];
                bf16_in_lanes::<S, 2, 4>(simd, x, w, tile, row);
                row += 2;
            }
            if row < rows.rows {
                bf16_in_lanes::<S, 1, 4>(simd, [rows.row(row)], w, tile, row);
            }
            at += 4;
        }
        for at in at..tile.len() {
            for row in 0..rows.rows {
                let (x, w) = ([rows.row(row)], [weights(at)]);
                bf16_in_lanes::<S, 1, 1>(simd, x, w, &mut tile[at..=at], row);
            }
        }
    }
}

/// The values in the low and in the high halves of words, with vectors of [`PARTIAL_SUMS`] lanes.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "closures of iterators are not compiled for the vector instructions"
)]
fn restore_bf16<S: Simd>(simd: S, group: &[[u8; 4]; BF16_GROUP]) -> (S::f32s, S::f32s) {
    let mut words = [0; BF16_GROUP];
    for at in 0..BF16_GROUP {
        words[at] = u32::from_le_bytes(group[at]);
    }
    let words = S::as_simd_u32s(&words).0[0];
    let low = simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16));
    let high = simd.and_u32s(words, simd.splat_u32s(0xffff_0000));
    (
        simd.transmute_f32s_u32s(low),
        simd.transmute_f32s_u32s(high),
    )
}

/// Restores the rows of a weight in bf16 to `values`, and returns whether this processor's vectors can. Left to itself, the
/// compiler gathers the words of a row, which takes several times as long.
pub(in crate::ops) fn restore_bf16_rows(
    weight: &QuantizedWeight,
    rows: Range<usize>,
    values: &mut [f32],
) -> bool {
    let (row_bytes, inputs) = (weight.row_bytes(), weight.shape().1);
    assert_eq!(values.len(), rows.len() * inputs);
    if inputs == 0 || !has_8_lanes() {
        return false;
    }
    let blocks = &weight.blocks()[rows.start * row_bytes..rows.end * row_bytes];
    for (blocks, values) in blocks
        .chunks_exact(row_bytes)
        .zip(values.chunks_exact_mut(inputs))
    {
        dispatch_8_lanes(RestoreBf16 { blocks, values });
    }
    true
}

/// Restores a row.
struct RestoreBf16<'a> {
    blocks: &'a [u8],
    values: &'a mut [f32],
}

impl WithSimd for RestoreBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let groups = self.blocks.as_chunks::<4>().0.as_chunks::<BF16_GROUP>().0;
        let (whole, rest) = self.values.as_chunks_mut::<{ 2 * BF16_GROUP }>();
        for (values, group) in whole.iter_mut().zip(groups) {
            let (low, high) = restore_bf16(simd, group);
            S::as_mut_simd_f32s(&mut values[..BF16_GROUP]).0[0] = low;
            S::as_mut_simd_f32s(&mut values[BF16_GROUP..]).0[0] = high;
        }
        if let (false, Some(group)) = (rest.is_empty(), groups.get(whole.len())) {
            let mut last = [0.0; 2 * BF16_GROUP];
            let (low, high) = restore_bf16(simd, group);
            S::as_mut_simd_f32s(&mut last[..BF16_GROUP]).0[0] = low;
            S::as_mut_simd_f32s(&mut last[BF16_GROUP..]).0[0] = high;
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

/// [`inputs_in_lanes`] with vectors of [`PARTIAL_SUMS`] lanes and weights in bf16.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the indices are of registers: an iterator would walk over the wrong dimension"
)]
fn bf16_in_lanes<S: Simd, const R: usize, const N: usize>(
    simd: S,
    x: [&[f32]; R],
    w: [&[u8]; N],
    tile: &mut Tile,
    row: usize,
) {
    const { assert!(BF16_GROUP == PARTIAL_SUMS) };
    let mut sums = [[simd.splat_f32s(0.0); N]; R];
    let mut groups: [&[[[u8; 4]; BF16_GROUP]]; N] = [&[]; N];
    for n in 0..N {
        groups[n] = w[n].as_chunks::<4>().0.as_chunks::<BF16_GROUP>().0;
    }
    let inner = x[0].len();
    let whole = inner / BF16_GROUP;
    // Plain loops: the closures of `array::map` and of iterators are not compiled for the vector instructions.
    for group in 0..whole.div_ceil(2) {
        let mut halves = [[simd.splat_f32s(0.0); N]; 2];
        for n in 0..N {
            (halves[0][n], halves[1][n]) = restore_bf16(simd, &groups[n][group]);
        }
        // The high halves of the last words may be beyond the last vector of inputs.
        for half in 0..2.min(whole - 2 * group) {
            let from = (2 * group + half) * BF16_GROUP;
            for r in 0..R {
                let x = S::as_simd_f32s(&x[r][from..from + BF16_GROUP]).0[0];
                for n in 0..N {
                    sums[r][n] = simd.mul_add_f32s(x, halves[half][n], sums[r][n]);
                }
            }
        }
    }
    let done = whole * BF16_GROUP;
    for r in 0..R {
        for n in 0..N {
            let mut partials = [0f32; PARTIAL_SUMS];
            S::as_mut_simd_f32s(&mut partials).0[0] = sums[r][n];
            if done < inner {
                let shift = if whole.is_multiple_of(2) { 16 } else { 0 };
                let rest = groups[n][whole / 2];
                for ((sum, x), word) in partials.iter_mut().zip(&x[r][done..]).zip(rest) {
                    let word = u32::from_le_bytes(word);
                    let w = f32::from_bits(word << shift & 0xffff_0000);
                    *sum = x.mul_add(w, *sum);
                }
            }
            let [a, b, c, d, e, f, g, h] = partials;
            tile[n][row + r] = ((a + e) + (c + g)) + ((b + f) + (d + h));
        }
    }
}
