//! Parsers of test runner summaries, one per runner.
//!
//! A parser accepts its runner's own summary line and nothing that merely resembles it; several runs in one text are added up.
//! Machine-readable reports (TAP, JUnit XML) are parsed only if there is no other summary, because runners print them in
//! addition to their own.

mod compiled;
mod counts;
mod machine;
mod python;
mod script;

pub use self::counts::Counts;

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
