//! Whitening: the advantages of all tokens of a batch get mean 0 and deviation 1.

use super::group::{deviation, mean};
use crate::real::Real;

/// Added to the deviation.
const EPSILON: f64 = 1e-8;

/// (A − mean) / (deviation + 1e-8) over all tokens of all rows; every token counts alike. Tokens that are all equal
/// have nothing to be compared with and become 0.
pub fn whiten<R: Real>(rows: &mut [Vec<R>]) {
    let all: Vec<R> = rows.iter().flatten().copied().collect();
    let mean = mean(&all);
    let scale = deviation(&all, mean, 0) + R::of(EPSILON);
    // Compared exactly, as groups are: what rounding leaves of equal numbers is no signal.
    let level = all
        .first()
        .is_none_or(|first| all.iter().all(|a| a == first));
    for advantage in rows.iter_mut().flatten() {
        *advantage = if level {
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
    fn equal_tokens_become_nothing() {
        let mut rows = vec![vec![0.1; 3], vec![0.1; 4]];
        whiten(&mut rows);
        assert!(rows.iter().flatten().all(|a| *a == 0.0), "{rows:?}");
        whiten::<f32>(&mut []);
    }

    /// Far enough for what is added to the deviation not to show.
    fn rows_differ(all: &[f64]) -> bool {
        let spread = |value: &f64| (value - all[0]).abs();
        all.iter().map(spread).fold(0.0, f64::max) > 0.1
    }

    proptest! {
        #[test]
        fn tokens_end_with_mean_zero_and_deviation_one(rows in prop::collection::vec(prop::collection::vec(-2.0..2.0f64, 1..6), 2..5)) {
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
