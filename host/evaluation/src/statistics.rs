//! Statistics of a series of scores, in order of measurement.
//!
//! All functions are deterministic: the bootstrap takes its seed, so a report can be recomputed from its records.
//!
//! Replies of one training run are not independent, so figures over several runs take one value per seed and the
//! [t interval](t_interval) over these. A percentile bootstrap over five values covers 84 % instead of 95 %; it serves for the
//! many conversations of one run.

use serde::Serialize;

use crate::seeds::{Purpose, choose, derive, generator};

/// Bootstrap resamples: enough that the ends of a 95 % interval vary by less than the second decimal between seeds.
const RESAMPLES: usize = 2_000;

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The arithmetic mean.
    pub mean: f64,
    /// Lower end of the interval; minus infinity for a single value.
    pub low: f64,
    /// Upper end of the interval; infinity for a single value.
    pub high: f64,
    /// Number of values.
    pub count: usize,
}

impl Estimate {
    /// Whether there is an interval: not of a single value.
    pub fn has_interval(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// The part of the interval within the range of the measured value.
    #[must_use]
    pub fn within(self, low: f64, high: f64) -> Estimate {
        if !self.has_interval() {
            return self;
        }
        Estimate {
            low: self.low.max(low),
            high: self.high.min(high),
            ..self
        }
    }
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
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// The mean of `values` with a 95 % percentile bootstrap interval.
pub fn estimate(values: &[f64], seed: u64) -> Option<Estimate> {
    let centre = mean(values)?;
    let mut rng = generator(derive(seed, 0, Purpose::Bootstrap, values.len() as u64));
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..values.len()).map(|_| choose(&mut rng, values)).sum();
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

/// The mean of independent `values` with the 95 % interval of Student's t distribution: mean ± t · s / √n with n − 1 degrees
/// of freedom. A single value has no interval: its ends are infinite.
pub fn t_interval(values: &[f64]) -> Option<Estimate> {
    let centre = mean(values)?;
    let count = values.len();
    let half = if count == 1 {
        f64::INFINITY
    } else {
        let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
        let variance = squares / (count - 1) as f64;
        t_quantile(count - 1) * (variance / count as f64).sqrt()
    };
    Some(Estimate {
        mean: centre,
        low: centre - half,
        high: centre + half,
        count,
    })
}

/// The mean of the means of clusters of values, with the [t interval](t_interval) over the clusters. Values of one
/// cluster, such as the replies of one training run, may depend on each other. Empty clusters are left out.
pub fn clustered<'a>(clusters: impl IntoIterator<Item = &'a [f64]>) -> Option<Estimate> {
    let means: Vec<f64> = clusters.into_iter().filter_map(mean).collect();
    t_interval(&means)
}

/// The 97.5 % quantile of Student's t distribution with `freedom` degrees of freedom, at least 1.
///
/// Inverts the exact finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4) by bisection over
/// the angle θ = atan(t / √freedom).
pub fn t_quantile(freedom: usize) -> f64 {
    // Beyond this the quantile changes in the fourth decimal.
    let freedom = freedom.clamp(1, 2_000);
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_PI_2);
    for _ in 0..60 {
        let angle = f64::midpoint(low, high);
        if central_probability(angle, freedom) < 0.95 {
            low = angle;
        } else {
            high = angle;
        }
    }
    f64::midpoint(low, high).tan() * (freedom as f64).sqrt()
}

/// The probability that |T| is less than √freedom · tan(angle).
fn central_probability(angle: f64, freedom: usize) -> f64 {
    let (sin, cos) = angle.sin_cos();
    // Factors (k − 1) / k · cos² of the terms: k = 2, 4, … for even, 3, 5, … for odd degrees of freedom.
    let odd = freedom % 2;
    let (mut term, mut sum) = (if odd == 1 { cos } else { 1.0 }, 0.0);
    let mut k = 2 + odd;
    while k <= freedom {
        sum += term;
        term *= (k - 1) as f64 / k as f64 * cos * cos;
        k += 2;
    }
    match odd {
        1 => (angle + sin * sum) * std::f64::consts::FRAC_2_PI,
        _ => sin * sum,
    }
}

/// The length of the first and last windows: 12, or half of a series shorter than 24, so that they never overlap.
pub fn window(conversations: usize) -> usize {
    12.min((conversations / 2).max(1))
}

/// The first window of a series.
pub fn first(values: &[f64]) -> &[f64] {
    &values[..window(values.len()).min(values.len())]
}

/// The last window of a series.
pub fn last(values: &[f64]) -> &[f64] {
    &values[values.len().saturating_sub(window(values.len()))..]
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
        .map(|at| {
            let to = (at + half.max(1)).min(values.len());
            mean(&values[at.saturating_sub(half)..to]).expect("the range contains `at`")
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
    fn t_quantiles_are_those_of_the_tables() {
        for (freedom, quantile) in [
            (1, 12.706_205),
            (2, 4.302_653),
            (3, 3.182_446),
            (4, 2.776_445),
            (5, 2.570_582),
            (9, 2.262_157),
            (10, 2.228_139),
            (30, 2.042_272),
            (100, 1.983_972),
            (1000, 1.962_339),
        ] {
            let found = t_quantile(freedom);
            assert!((found - quantile).abs() < 2e-6, "{freedom}: {found}");
        }
    }

    #[test]
    fn the_t_interval_of_five_values_is_that_of_the_textbook() {
        let got = t_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        // The standard error is √(2.5 / 5).
        let half = 2.776_445 * 0.5_f64.sqrt();
        assert_eq!((got.mean, got.count), (3.0, 5));
        assert!((got.low - (3.0 - half)).abs() < 1e-5 && (got.high - (3.0 + half)).abs() < 1e-5);
        assert_eq!(t_interval(&[]), None);
        let single = t_interval(&[0.5]).unwrap();
        assert!(!single.has_interval() && single.within(0.0, 1.0) == single);
        let within = got.within(2.0, 3.5);
        assert_eq!((within.low, within.high), (2.0, 3.5));
    }

    #[test]
    fn replies_of_one_run_are_one_value() {
        let runs: [&[f64]; 3] = [&[1.0, 1.0, 1.0, 0.0], &[0.25], &[]];
        let got = clustered(runs).unwrap();
        assert_eq!(got, t_interval(&[0.75, 0.25]).unwrap());
    }

    /// The share of samples of five standard normal values whose interval contains 0.
    #[test]
    fn the_t_interval_of_five_values_covers_95_percent_and_the_bootstrap_less() {
        let mut rng = generator(7);
        let mut uniform = || (rand::Rng::next_u64(&mut rng) >> 11) as f64 / (1_u64 << 53) as f64;
        // Box and Muller.
        let mut normal =
            || (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let contains = |e: Estimate| f64::from(u8::from(e.low <= 0.0 && e.high >= 0.0));
        let mut values = || -> Vec<f64> { (0..5).map(|_| normal()).collect() };
        let by_t: f64 = (0..4_000)
            .map(|_| contains(t_interval(&values()).unwrap()))
            .sum();
        let by_bootstrap: f64 = (0..200)
            .map(|seed| contains(estimate(&values(), seed).unwrap()))
            .sum();
        assert!((by_t / 4_000.0 - 0.95).abs() < 0.015, "{by_t}");
        assert!(by_bootstrap / 200.0 < 0.91, "{by_bootstrap}");
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
