//! cargo test, nextest, go test and ctest.

use super::counts::{Counts, counted, sum, whole};

/// `test result: ok. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s`,
/// once per test binary.
pub(super) fn cargo(text: &str) -> Counts {
    sum(text, cargo_line)
}

fn cargo_line(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?;
    let rest = rest
        .strip_prefix("ok. ")
        .or_else(|| rest.strip_prefix("FAILED. "))?;
    let mut counts = Counts::default();
    for part in rest.split("; ") {
        match counted(part) {
            Some((number, "passed")) => counts.passed = number,
            Some((number, "failed")) => counts.failed = number,
            Some((number, "ignored")) => counts.skipped = number,
            _ => {}
        }
    }
    Some(counts)
}

/// `Summary [   0.005s] 3 tests run: 2 passed, 1 failed, 0 skipped`.
pub(super) fn nextest(text: &str) -> Counts {
    sum(text, nextest_line)
}

fn nextest_line(line: &str) -> Option<Counts> {
    let (_, rest) = line.strip_prefix("Summary [")?.split_once("] ")?;
    let (run, results) = rest.split_once(" run: ")?;
    let (_, tests) = run.rsplit_once(' ')?;
    if !matches!(tests, "test" | "tests") {
        return None;
    }
    let mut counts = Counts::default();
    for part in results.split(", ") {
        // `2 passed (1 slow, 1 flaky)` is split at the comma; the part in brackets does not count.
        let part = part.split(" (").next().unwrap_or(part);
        match counted(part) {
            Some((number, "passed")) => counts.passed += number,
            Some((number, "failed" | "timed out" | "exec failed")) => counts.failed += number,
            Some((number, "skipped")) => counts.skipped += number,
            _ => {}
        }
    }
    Some(counts)
}

/// With `-v` the lines `--- PASS: TestX (0.00s)`; otherwise the packages' `ok` and `FAIL` lines, because then passed tests
/// are not listed.
pub(super) fn go(text: &str) -> Counts {
    let mut tests = Counts::default();
    let mut packages = Counts::default();
    let mut broken = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("--- ") {
            match rest.split_once(": ") {
                Some(("PASS", name)) if is_go_test(name) => tests.passed += 1,
                Some(("FAIL", name)) if is_go_test(name) => tests.failed += 1,
                Some(("SKIP", name)) if is_go_test(name) => tests.skipped += 1,
                _ => {}
            }
        } else if let Some(failed) = go_package(line) {
            match failed {
                GoPackage::Passed => packages.passed += 1,
                GoPackage::Failed => packages.failed += 1,
                GoPackage::Broken => broken += 1,
            }
        }
    }
    let mut counts = if tests.passed > 0 || packages.is_empty() {
        tests
    } else {
        packages
    };
    // The tests of a package that does not build are not listed.
    counts.failed += broken;
    counts
}

/// `TestX (0.00s)`; results of subtests are indented and are skipped.
fn is_go_test(rest: &str) -> bool {
    rest.ends_with("s)") && rest.contains(" (")
}

enum GoPackage {
    Passed,
    Failed,
    Broken,
}

fn go_package(line: &str) -> Option<GoPackage> {
    let mut fields = line.split_whitespace();
    let result = fields.next()?;
    let _package = fields.next()?;
    let third = fields.next()?;
    let is_timed = third == "(cached)"
        || third
            .strip_suffix('s')
            .is_some_and(|seconds| seconds.parse::<f64>().is_ok());
    match result {
        "ok" if is_timed && !line.contains("[no tests to run]") => Some(GoPackage::Passed),
        "FAIL" if is_timed => Some(GoPackage::Failed),
        "FAIL" if third == "[build" || third == "[setup" => Some(GoPackage::Broken),
        _ => None,
    }
}

/// `80% tests passed, 1 tests failed out of 5`.
pub(super) fn ctest(text: &str) -> Counts {
    sum(text, ctest_line)
}

fn ctest_line(line: &str) -> Option<Counts> {
    let (share, rest) = line.split_once("% tests passed, ")?;
    whole(share)?;
    let (failed, rest) = rest.split_once(' ')?;
    let (_, total) = rest.split_once("failed out of ")?;
    let (failed, total) = (whole(failed)?, whole(total.trim())?);
    Some(Counts::new(total.checked_sub(failed)?, failed, 0))
}
