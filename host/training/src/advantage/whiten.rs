//! Whitening: scales the advantages of all tokens of a batch to mean 0 and standard deviation 1.

use super::group::{deviation, mean};
use crate::float::Float;

/// Added to the deviation.
const EPSILON: f64 = 1e-8;

/// (A − mean) / (deviation + 1e-8) over all tokens of all rows, each token with equal weight. If all advantages are equal
/// they become 0.
pub fn whiten<R: Float>(rows: &mut [Vec<R>]) {
    let all: Vec<R> = rows.iter().flatten().copied().collect();
    let mean = mean(&all);
    let scale = deviation(&all, mean, 0) + R::from_f64(EPSILON);
    // Compared exactly, like groups: a rounding residue is no signal.
    let is_constant = all
        .first()
        .is_none_or(|first| all.iter().all(|a| a == first));
    for advantage in rows.iter_mut().flatten() {
        *advantage = if is_constant {
            R::ZERO
        } else {
            (*advantage - mean) / scale
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_advantages_become_zero() {
        let mut rows = vec![vec![0.1; 3], vec![0.1; 4]];
        whiten(&mut rows);
        assert!(rows.iter().flatten().all(|a| *a == 0.0), "{rows:?}");
        whiten::<f32>(&mut []);
    }

    /// Whether the rows differ enough for epsilon not to matter.
    fn rows_differ(all: &[f64]) -> bool {
        let spread = |value: &f64| (value - all[0]).abs();
        all.iter().map(spread).fold(0.0, f64::max) > 0.1
    }

    proptest! {
        #[test]
        fn whitened_advantages_have_mean_zero_and_deviation_one(rows in prop::collection::vec(prop::collection::vec(-2.0..2.0f64, 1..6), 2..5)) {
            let before = rows.concat();
            let mut rows = rows;
            whiten(&mut rows);
            let all: Vec<f64> = rows.concat();
            let n = all.len() as f64;
            let mean = all.iter().sum::<f64>() / n;
            prop_assume!(rows_differ(&before));
            let square = all.iter().map(|a| a * a).sum::<f64>() / n;
            prop_assert!(mean.abs() < 1e-9 && (square - 1.0).abs() < 1e-6, "{mean} {square}");
        }
    }
}
