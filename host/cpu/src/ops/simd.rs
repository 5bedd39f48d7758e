//! Runs loops with the widest vector instructions of this processor, and provides the few scalar functions that such
//! loops need in a form that the compiler can vectorize.
//!
//! This is not a vector library: loops stay plain Rust, and dispatch happens once per call.

/// Runs `body` compiled for the instruction set detected at run time.
#[inline(always)]
pub(crate) fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(body)
}

/// Number of f32 values in one vector of the instruction set that [`vectorized`] chooses.
pub(crate) fn lanes() -> usize {
    struct Lanes;
    impl pulp::WithSimd for Lanes {
        type Output = usize;

        fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    pulp::Arch::new().dispatch(Lanes)
}

const LANES: usize = 32;

/// Dot product with a fixed order of summation: the same inputs give the same bits, whatever the
/// caller batches around them. Call inside [`vectorized`].
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (a_main, a_rest) = a.as_chunks::<LANES>();
    let (b_main, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_main.iter().zip(b_main) {
        for i in 0..LANES {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    let mut sum = lanes[0];
    for (x, y) in a_rest.iter().zip(b_rest) {
        sum = x.mul_add(*y, sum);
    }
    sum
}

/// `y += scale * x`. Call inside [`vectorized`].
#[inline(always)]
pub(crate) fn axpy(y: &mut [f32], scale: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x.mul_add(scale, *y);
    }
}

/// e^x to about one unit in the last place, branch-free. Below -87.3 it returns about 1e-38
/// instead of a subnormal, above 88.3 about 2.4e38 instead of infinity; NaN stays NaN.
///
/// Range reduction x = n ln 2 + r with a degree-6 polynomial in r (Cephes coefficients).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let x = if x < -87.336_54 { -87.336_54 } else { x };
    let x = if x > 88.376_26 { 88.376_26 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let y = p.mul_add(r * r, r) + 1.0;
    let power = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127)
        << 23;
    y * f32::from_bits(power)
}

/// Largest value, with independent comparisons so that it vectorizes.
#[inline(always)]
pub(crate) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (main, rest) = values.as_chunks::<LANES>();
    for chunk in main {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] {
                chunk[i]
            } else {
                lanes[i]
            };
        }
    }
    let mut best = f32::NEG_INFINITY;
    for v in lanes.iter().chain(rest) {
        best = if *v > best { *v } else { best };
    }
    best
}

/// Replaces each value by exp(value - shift) and returns the sum in a fixed order.
#[inline(always)]
pub(crate) fn exp_sum(values: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (main, rest) = values.as_chunks_mut::<LANES>();
    for chunk in main {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] - shift);
            lanes[i] += chunk[i];
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for v in rest {
        *v = exp(*v - shift);
        sum += *v;
    }
    sum
}

/// Replaces each value by exp(value - shift), and returns the sum of the exponentials and that of `(value - shift) *
/// exp(value - shift)`, in a fixed order.
#[inline(always)]
pub(crate) fn exp_sums(values: &mut [f32], shift: f32) -> (f32, f32) {
    let (mut sums, mut weighted) = ([0f32; LANES], [0f32; LANES]);
    let (main, rest) = values.as_chunks_mut::<LANES>();
    for chunk in main {
        for i in 0..LANES {
            let x = chunk[i] - shift;
            chunk[i] = exp(x);
            sums[i] += chunk[i];
            weighted[i] = x.mul_add(chunk[i], weighted[i]);
        }
    }
    let (mut sum, mut product) = (sums.iter().sum::<f32>(), weighted.iter().sum::<f32>());
    for v in rest {
        let x = *v - shift;
        *v = exp(x);
        sum += *v;
        product = x.mul_add(*v, product);
    }
    (sum, product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_the_standard_library() {
        let mut worst = 0f64;
        for i in -86_000..88_000 {
            let x = i as f32 * 1e-3;
            let right = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - right).abs() / right);
        }
        assert!(worst < 2e-7, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::INFINITY).is_finite());
    }

    #[test]
    fn dot_and_exp_sum_match_a_plain_loop() {
        for len in [0, 1, 31, 32, 33, 100, 257] {
            let a: Vec<f32> = (0..len).map(|i| (i as f32).sin()).collect();
            let b: Vec<f32> = (0..len).map(|i| (i as f32).cos()).collect();
            let plain: f64 = a
                .iter()
                .zip(&b)
                .map(|(x, y)| f64::from(*x) * f64::from(*y))
                .sum();
            assert!((f64::from(vectorized(|| dot(&a, &b))) - plain).abs() < 1e-4);
            let mut e = a.clone();
            let sum = vectorized(|| exp_sum(&mut e, 0.5));
            let plain: f64 = a.iter().map(|x| f64::from(x - 0.5).exp()).sum();
            assert!((f64::from(sum) - plain).abs() <= 1e-4 * (1.0 + plain));
        }
    }
}
