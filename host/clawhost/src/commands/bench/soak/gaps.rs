//! Gaps between tokens, counted in buckets of one in a hundred: millions of them in a few kilobytes, so that
//! counting does not show in the memory that is watched.

use std::time::Duration;

/// The least gap that is told apart, in milliseconds.
const LEAST: f64 = 0.01;
/// Each bucket is this much wider than the one before.
const STEP: f64 = 1.01;
/// Enough for gaps of a quarter of an hour.
const BUCKETS: usize = 1850;

/// How often gaps of each length were seen.
#[derive(Debug, Clone)]
pub(super) struct Gaps {
    counts: Vec<u64>,
    longest: f64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            longest: 0.0,
        }
    }
}

impl Gaps {
    pub(super) fn add(&mut self, gap: Duration) {
        let ms = gap.as_secs_f64() * 1e3;
        let bucket = (ms.max(LEAST) / LEAST).ln() / STEP.ln();
        // The cast saturates, and what is longer than the last bucket is counted in it.
        let bucket = (bucket as usize).min(BUCKETS - 1);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.longest = self.longest.max(ms);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
        self.longest = self.longest.max(other.longest);
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Milliseconds that this share of the gaps does not exceed; 0 without any.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0);
        let mut seen = 0.0;
        for (bucket, count) in (0i32..).zip(&self.counts) {
            seen += *count as f64;
            if *count > 0 && seen >= wanted {
                return (LEAST * STEP.powi(bucket + 1)).min(self.longest);
            }
        }
        0.0
    }

    /// Milliseconds of the longest.
    pub(super) fn longest(&self) -> f64 {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_one_in_a_hundred() {
        let mut gaps = Gaps::default();
        assert_eq!((gaps.quantile(0.5), gaps.count()), (0.0, 0));
        for ms in 1..=1000u64 {
            gaps.add(Duration::from_millis(ms));
        }
        for (share, right) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = gaps.quantile(share);
            assert!((found / right - 1.0).abs() < 0.011, "{found} for {right}");
        }
        let mut other = Gaps::default();
        other.add(Duration::from_secs(7200));
        other.add(Duration::ZERO);
        gaps.merge(&other);
        assert_eq!((gaps.count(), gaps.longest()), (1002, 7_200_000.0));
    }
}
