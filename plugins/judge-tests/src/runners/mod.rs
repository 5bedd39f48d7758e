//! Parsers of test runner summaries, one per runner.
//!
//! A parser accepts its runner's own summary line and nothing that merely resembles it; several runs in one text are added up.
//! Machine-readable reports (TAP, JUnit XML) are parsed only if there is no other summary, because runners print them in
//! addition to their own.

mod compiled;
mod machine;
mod python;
mod script;

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
    fn new(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    fn is_empty(self) -> bool {
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

/// All summaries in a text, added up.
pub(crate) fn read(text: &str) -> Counts {
    let mut counts = Counts::default();
    for reader in [
        python::pytest,
        python::unittest,
        compiled::cargo,
        compiled::nextest,
        compiled::go,
        compiled::ctest,
        script::jest,
        script::vitest,
        script::mocha,
    ] {
        counts += reader(text);
    }
    for reader in [machine::junit, machine::tap] {
        if counts.is_empty() {
            counts = reader(text);
        }
    }
    counts
}

/// Every line that a parser reads contains one of these, or ends with `ok`.
const MARKS: &[&str] = &[
    "passed",
    "failed",
    "error",
    "skipped",
    "Ran ",
    "OK",
    "FAIL",
    "test result",
    "Summary",
    "--- ",
    "ok ",
    "ok\t",
    "1..",
    "Tests",
    "passing",
    "failing",
    "pending",
    "testsuite",
    "tests=",
    "failures=",
    "disabled=",
];

/// Whether a parser might read the line.
pub(crate) fn may_be_read(line: &str) -> bool {
    line.ends_with("ok") || MARKS.iter().any(|mark| line.contains(mark))
}

/// `12 passed`: a number and its label.
fn counted(text: &str) -> Option<(u64, &str)> {
    let (number, what) = text.trim().split_once(' ')?;
    Some((whole(number)?, what.trim()))
}

/// Parses a whole number; implausibly large numbers are rejected.
fn whole(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|number| *number <= 10_000_000)
}
