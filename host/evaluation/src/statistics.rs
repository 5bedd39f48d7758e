//! Statistics of a series of scores, in order of measurement.
//!
//! All functions are deterministic: the bootstrap takes its seed, so a report can be recomputed from its records.

use serde::Serialize;

use crate::seeds::{Purpose, derive, generator};

/// Bootstrap resamples: enough that the ends of a 95 % interval vary by less than the second decimal between seeds.
const RESAMPLES: usize = 2_000;

/// A mean with its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The arithmetic mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of values.
    pub count: usize,
}

/// The arithmetic mean, or `None` for an empty slice.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

/// The median (mean of the two middle values for an even count), or `None` for an empty slice.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The `q`-quantile by linear interpolation between order statistics; `q` is clamped to [0, 1].
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted_quantile(&sorted, q)
}

fn sorted_quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = *sorted.get(at.floor() as usize)?;
    let above = *sorted.get(at.ceil() as usize)?;
    Some(below + (above - below) * at.fract())
}

/// The mean of `values` with a 95 % percentile bootstrap interval.
pub fn estimate(values: &[f64], seed: u64) -> Option<Estimate> {
    let centre = mean(values)?;
    let mut rng = generator(derive(seed, 0, Purpose::Bootstrap, values.len() as u64));
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..values.len())
                .filter_map(|_| crate::seeds::choose(&mut rng, values))
                .sum();
            sum / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some(Estimate {
        mean: centre,
        low: sorted_quantile(&means, 0.025)?,
        high: sorted_quantile(&means, 0.975)?,
        count: values.len(),
    })
}

/// The length of the first and last windows: 12, or half of a series shorter than 24, so that they never overlap.
pub fn window(conversations: usize) -> usize {
    12.min((conversations / 2).max(1))
}

/// The first window of a series.
pub fn first(values: &[f64]) -> &[f64] {
    values.get(..window(values.len())).unwrap_or(values)
}

/// The last window of a series.
pub fn last(values: &[f64]) -> &[f64] {
    values
        .len()
        .checked_sub(window(values.len()))
        .and_then(|from| values.get(from..))
        .unwrap_or(values)
}

/// The number of values until `run` in a row reached `threshold` (including the run), or `None`.
pub fn count_until_streak(values: &[f64], run: usize, threshold: f64) -> Option<usize> {
    let mut streak = 0;
    for (at, value) in values.iter().enumerate() {
        streak = if *value >= threshold { streak + 1 } else { 0 };
        if streak >= run.max(1) {
            return Some(at + 1);
        }
    }
    None
}

/// The centred moving average over `width` values, one per input; shortened at both ends to at least half. (A trailing
/// mean would start with the very first value.)
pub fn moving_average(values: &[f64], width: usize) -> Vec<f64> {
    let half = width / 2;
    (0..values.len())
        .filter_map(|at| {
            let to = (at + half.max(1)).min(values.len());
            mean(values.get(at.saturating_sub(half)..to)?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn windows_never_overlap() {
        let series: Vec<f64> = (0..60).map(f64::from).collect();
        assert_eq!(first(&series).len(), 12);
        assert_eq!(last(&series).first(), Some(&48.0));
        for (count, expected) in [(0, 1), (1, 1), (2, 1), (7, 3), (23, 11), (24, 12), (90, 12)] {
            assert_eq!(window(count), expected, "{count}");
        }
        assert_eq!(first(&series[..5]), &[0.0, 1.0]);
        assert_eq!(last(&series[..5]), &[3.0, 4.0]);
        assert!(first(&[]).is_empty() && last(&[]).is_empty());
    }

    #[test]
    fn streaks_are_counted_from_the_start() {
        let cases: &[(&[f64], Option<usize>)] = &[
            (&[1.0, 1.0, 1.0], Some(3)),
            (&[1.0, 1.0, 0.0, 1.0, 1.0, 0.9], Some(6)),
            (&[1.0, 0.0, 1.0, 1.0], None),
            (&[], None),
        ];
        for (values, expected) in cases {
            assert_eq!(count_until_streak(values, 3, 0.8), *expected, "{values:?}");
        }
    }

    #[test]
    fn the_moving_average_is_centred() {
        let values = [1.0, 0.0, 0.0, 4.0, 5.0];
        assert_eq!(
            moving_average(&values, 4),
            vec![0.5, 1.0 / 3.0, 1.25, 2.25, 3.0]
        );
        assert_eq!(moving_average(&values, 1), values);
        assert_eq!(moving_average(&[], 4), Vec::<f64>::new());
    }

    #[test]
    fn the_interval_of_a_fair_coin_matches_theory() {
        let values: Vec<f64> = (0..200).map(|i| f64::from(i % 2)).collect();
        let got = estimate(&values, 5).unwrap();
        // The standard error of a fair coin over 200 throws is 0.03536; 1.96 of it on each side.
        assert!((got.mean - 0.5).abs() < 1e-12);
        assert!((got.low - 0.4307).abs() < 0.012, "{got:?}");
        assert!((got.high - 0.5693).abs() < 0.012, "{got:?}");
        assert_eq!(got, estimate(&values, 5).unwrap());
        assert_eq!(estimate(&[], 5), None);
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[4.0, 1.0], 1.5), Some(4.0));
        assert_eq!(median(&[]), None);
    }

    proptest! {
        #[test]
        fn an_interval_contains_its_mean_and_stays_in_range(
            values in proptest::collection::vec(0.0f64..=1.0, 1..40), seed: u64
        ) {
            let got = estimate(&values, seed).unwrap();
            prop_assert!(got.low <= got.high);
            prop_assert!(got.low >= -1e-9 && got.high <= 1.0 + 1e-9);
            prop_assert!(got.low <= got.mean + 1e-9 || values.len() < 4);
        }
    }
}
