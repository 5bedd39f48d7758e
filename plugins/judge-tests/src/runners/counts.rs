//! Test counts, and how they are read from a summary.

use std::ops::AddAssign;

/// Test counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Passed.
    pub passed: u64,
    /// Failed, or crashed.
    pub failed: u64,
    /// Skipped, or expected to fail.
    pub skipped: u64,
}

impl Counts {
    pub(super) fn new(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self == Counts::default()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.skipped = self.skipped.saturating_add(other.skipped);
    }
}

/// The counts of every line that `read` accepts, added up.
pub(super) fn sum(text: &str, read: fn(&str) -> Option<Counts>) -> Counts {
    let mut all = Counts::default();
    for counts in text.lines().filter_map(|line| read(line.trim())) {
        all += counts;
    }
    all
}

/// `12 passed`: a number and its label.
pub(super) fn counted(text: &str) -> Option<(u64, &str)> {
    let (number, what) = text.trim().split_once(' ')?;
    Some((whole(number)?, what.trim()))
}

/// Parses a whole number; implausibly large numbers are rejected.
pub(super) fn whole(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|number| *number <= 10_000_000)
}
