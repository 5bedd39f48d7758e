//! Vectorised passes over a row of logits.
//!
//! A row is divided into blocks of [`BLOCK`] tokens. Per-block results (maximum logit, sum of weights) let later steps
//! skip most of the row. The order of summation depends only on the row's length, so the same row gives bitwise the
//! same result in any batch.

use crate::ops::simd::{self, vectorized};

/// Tokens in a block.
pub(super) const BLOCK: usize = 128;

const LANES: usize = 16;

/// Exponents below this give weight 0: less than e^-87 of the largest weight.
const MIN_EXPONENT: f32 = -87.0;

/// Writes the block maxima and returns the maximum of the row. `None` if a logit is NaN or positive infinity, or
/// negative infinity unless `masked` says that the row is masked.
pub(super) fn largest(logits: &[f32], masked: bool, blocks: &mut Vec<f32>) -> Option<f32> {
    blocks.clear();
    blocks.reserve(logits.len().div_ceil(BLOCK));
    let valid = vectorized(
        #[inline(always)]
        || block_maxima(logits, masked, blocks),
    );
    valid.then(|| blocks.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

#[inline(always)]
fn block_maxima(logits: &[f32], masked: bool, blocks: &mut Vec<f32>) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let mut bad = [0u32; LANES];
    let (whole, rest) = logits.as_chunks::<BLOCK>();
    let allowed = if masked {
        f32::NEG_INFINITY.to_bits()
    } else {
        // The bit pattern of a finite value, so that it allows no non-finite value.
        0
    };
    for block in whole {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (rows, _) = block.as_chunks::<LANES>();
        for row in rows {
            for i in 0..LANES {
                let bits = row[i].to_bits();
                bad[i] |= u32::from(bits & EXPONENT == EXPONENT) & u32::from(bits != allowed);
                lanes[i] = if row[i] > lanes[i] { row[i] } else { lanes[i] };
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                let other = lanes[i + width];
                lanes[i] = if other > lanes[i] { other } else { lanes[i] };
            }
            width /= 2;
        }
        blocks.push(lanes[0]);
    }
    let mut valid = bad.iter().all(|lane| *lane == 0);
    if !rest.is_empty() {
        valid &= rest
            .iter()
            .all(|x| x.is_finite() || x.to_bits() == allowed && masked);
        blocks.push(simd::max(rest));
    }
    valid
}

/// Computes e^((logit - largest) * inverse) of each logit, with block sums; returns the total.
pub(super) fn weigh(
    logits: &[f32],
    (largest, inverse): (f32, f32),
    weights: &mut Vec<f32>,
    sums: &mut Vec<f64>,
) -> f64 {
    weights.resize(logits.len(), 0.0);
    sums.clear();
    sums.reserve(logits.len().div_ceil(BLOCK));
    vectorized(
        #[inline(always)]
        || {
            for (logits, weights) in logits.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)) {
                sums.push(weigh_block(logits, weights, largest, inverse));
            }
        },
    );
    sums.iter().sum()
}

#[inline(always)]
fn weigh_block(logits: &[f32], weights: &mut [f32], largest: f32, inverse: f32) -> f64 {
    let mut lanes = [0f64; LANES];
    let (rows, rest) = logits.as_chunks::<LANES>();
    let (out, rest_out) = weights.as_chunks_mut::<LANES>();
    for (row, out) in rows.iter().zip(out) {
        for i in 0..LANES {
            out[i] = weight(row[i], largest, inverse);
        }
        for i in 0..LANES {
            lanes[i] += f64::from(out[i]);
        }
    }
    let mut sum = total(lanes);
    for (logit, out) in rest.iter().zip(rest_out) {
        *out = weight(*logit, largest, inverse);
        sum += f64::from(*out);
    }
    sum
}

/// The total that [`weigh`] returns, without storing the weights.
pub(super) fn sum_of_weights(logits: &[f32], largest: f32, inverse: f32) -> f64 {
    vectorized(
        #[inline(always)]
        || {
            let mut sum = 0.0;
            for block in logits.chunks(BLOCK) {
                let mut kept = [0f32; BLOCK];
                sum += weigh_block(block, &mut kept[..block.len()], largest, inverse);
            }
            sum
        },
    )
}

/// e^((logit - largest) * inverse), or 0 below [`MIN_EXPONENT`].
#[inline(always)]
pub(super) fn weight(logit: f32, largest: f32, inverse: f32) -> f32 {
    let exponent = (logit - largest) * inverse;
    let value = simd::exp(exponent);
    if exponent < MIN_EXPONENT { 0.0 } else { value }
}

/// Sets weights below `min_weight` to 0 and recomputes the block sums; returns the total.
pub(super) fn keep_at_least(weights: &mut [f32], min_weight: f32, sums: &mut Vec<f64>) -> f64 {
    sums.clear();
    vectorized(
        #[inline(always)]
        || {
            for block in weights.chunks_mut(BLOCK) {
                let mut lanes = [0f64; LANES];
                let (rows, rest) = block.as_chunks_mut::<LANES>();
                for row in rows {
                    for value in row.iter_mut() {
                        *value = if *value >= min_weight { *value } else { 0.0 };
                    }
                    for (lane, value) in lanes.iter_mut().zip(row) {
                        *lane += f64::from(*value);
                    }
                }
                let mut sum = total(lanes);
                for value in rest {
                    *value = if *value >= min_weight { *value } else { 0.0 };
                    sum += f64::from(*value);
                }
                sums.push(sum);
            }
        },
    );
    sums.iter().sum()
}

#[inline(always)]
fn total(mut lanes: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * 0.37).sin() * 9.0).collect()
    }

    #[test]
    fn block_maxima_and_sums_match_a_plain_loop() {
        for len in [1, 15, 16, 127, 128, 129, 1000] {
            let logits = row(len);
            let (mut blocks, mut weights, mut sums) = (Vec::new(), Vec::new(), Vec::new());
            let top = largest(&logits, false, &mut blocks).unwrap();
            assert_eq!(top, logits.iter().copied().fold(f32::MIN, f32::max));
            assert_eq!(blocks.len(), len.div_ceil(BLOCK));
            let sum = weigh(&logits, (top, 0.5), &mut weights, &mut sums);
            let plain: f64 = logits
                .iter()
                .map(|x| (f64::from(x - top) * 0.5).exp())
                .sum();
            assert!((sum - plain).abs() < 1e-5 * plain, "{len}: {sum} {plain}");
            assert_eq!(sum_of_weights(&logits, top, 0.5), sum);
            let exact: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            assert!((sum - exact).abs() < 1e-12 * exact);
            assert_eq!(sums.len(), blocks.len());
        }
    }

    #[test]
    fn non_finite_logits_are_detected_at_any_position() {
        for len in [5, 128, 300] {
            for at in [0, len / 2, len - 1] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut logits = row(len);
                    logits[at] = bad;
                    assert_eq!(largest(&logits, false, &mut Vec::new()), None);
                    let masked = largest(&logits, true, &mut Vec::new());
                    assert_eq!(masked.is_some(), bad == f32::NEG_INFINITY);
                }
            }
        }
    }

    #[test]
    fn masked_tokens_have_weight_zero() {
        let logits = [0.0, f32::NEG_INFINITY, -200.0, -3.0];
        let (mut weights, mut sums) = (Vec::new(), Vec::new());
        weigh(&logits, (0.0, 1.0), &mut weights, &mut sums);
        assert_eq!(&weights[..3], [1.0, 0.0, 0.0]);
        assert_eq!(keep_at_least(&mut weights, 0.5, &mut sums), 1.0);
        assert_eq!(weights, [1.0, 0.0, 0.0, 0.0]);
    }
}
