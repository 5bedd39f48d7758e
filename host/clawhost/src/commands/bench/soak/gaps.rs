//! A histogram of gaps between tokens with 1 % wide buckets: a few kilobytes for millions of gaps, so that it does not
//! affect the measured memory.

use std::time::Duration;

/// Lower bound of the first bucket, in milliseconds.
const MIN_MS: f64 = 0.01;
/// Ratio of successive bucket bounds.
const STEP: f64 = 1.01;
/// Enough for gaps of a quarter of an hour.
const BUCKETS: usize = 1850;

/// Counts of gaps by length.
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
        let bucket = (ms.max(MIN_MS) / MIN_MS).ln() / STEP.ln();
        // The cast saturates; longer gaps are counted in the last bucket.
        let bucket = (bucket as usize).min(BUCKETS - 1);
        self.counts[bucket] += 1;
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

    /// The quantile in milliseconds; 0 without any gaps.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let rank = (self.count() as f64 * share).ceil().max(1.0);
        let mut seen = 0.0;
        for (bucket, count) in (0i32..).zip(&self.counts) {
            seen += *count as f64;
            if *count > 0 && seen >= rank {
                return (MIN_MS * STEP.powi(bucket + 1)).min(self.longest);
            }
        }
        0.0
    }

    /// The longest gap in milliseconds.
    pub(super) fn longest(&self) -> f64 {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_one_percent() {
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
