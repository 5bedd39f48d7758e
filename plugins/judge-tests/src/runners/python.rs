//! pytest and unittest.

use super::counts::{Counts, counted, sum, whole};

/// `==== 1 failed, 2 passed in 0.12s ====`, with `-q` without the `=`.
pub(super) fn pytest(text: &str) -> Counts {
    sum(text, pytest_line)
}

fn pytest_line(line: &str) -> Option<Counts> {
    let line = line.trim_matches('=').trim();
    let (parts, time) = line.rsplit_once(" in ")?;
    // `0.12s` or `75.30s (0:01:15)`.
    let seconds = time.split(' ').next()?.strip_suffix('s')?;
    seconds.parse::<f64>().ok()?;
    let mut counts = Counts::default();
    let mut ran = false;
    for part in parts.split(", ") {
        let (number, what) = counted(part)?;
        match what {
            "passed" => counts.passed += number,
            "failed" | "error" | "errors" => counts.failed += number,
            "skipped" | "xfailed" | "xpassed" => counts.skipped += number,
            "deselected" | "warning" | "warnings" | "rerun" | "subtests passed" => continue,
            _ => return None,
        }
        ran = true;
    }
    ran.then_some(counts)
}

/// `Ran 3 tests in 0.001s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
pub(super) fn unittest(text: &str) -> Counts {
    let mut all = Counts::default();
    let mut ran = None;
    for line in text.lines().map(str::trim) {
        if let Some(count) = ran_tests(line) {
            ran = Some(count);
        } else if let Some(count) = ran
            && let Some(counts) = status(line, count)
        {
            all += counts;
            ran = None;
        }
    }
    all
}

fn ran_tests(line: &str) -> Option<u64> {
    let (count, rest) = line.strip_prefix("Ran ")?.split_once(' ')?;
    let is_summary = rest.starts_with("tests in ") || rest.starts_with("test in ");
    whole(count).filter(|_| is_summary)
}

fn status(line: &str, ran: u64) -> Option<Counts> {
    let details = match line {
        "OK" | "FAILED" => "",
        _ => line
            .strip_prefix("OK (")
            .or_else(|| line.strip_prefix("FAILED ("))?
            .strip_suffix(')')?,
    };
    let (mut failed, mut skipped) = (0, 0);
    for detail in details.split(", ").filter(|detail| !detail.is_empty()) {
        let (name, count) = detail.split_once('=')?;
        let count = whole(count)?;
        match name {
            "failures" | "errors" | "unexpected successes" => failed += count,
            "skipped" | "expected failures" => skipped += count,
            _ => return None,
        }
    }
    // Import errors of modules count as tests that ran, errors of fixtures do not.
    let failed_of_ran = failed.min(ran);
    let passed = ran.saturating_sub(failed_of_ran).saturating_sub(skipped);
    Some(Counts::new(passed, failed, skipped))
}
