//! jest, vitest and mocha.

use super::counts::{Counts, counted, sum, whole};

/// `Tests:       1 failed, 2 skipped, 5 passed, 8 total`.
pub(super) fn jest(text: &str) -> Counts {
    sum(text, |line| {
        let (results, total) = line.strip_prefix("Tests:")?.rsplit_once(", ")?;
        total.trim().strip_suffix(" total")?;
        listed(results, ", ")
    })
}

/// ` Tests  1 failed | 5 passed (6)`.
pub(super) fn vitest(text: &str) -> Counts {
    sum(text, |line| {
        let (results, total) = line.strip_prefix("Tests  ")?.rsplit_once(" (")?;
        whole(total.strip_suffix(')')?)?;
        listed(results, " | ")
    })
}

fn listed(results: &str, between: &str) -> Option<Counts> {
    let mut counts = Counts::default();
    for part in results.split(between) {
        match counted(part)? {
            (number, "passed") => counts.passed += number,
            (number, "failed") => counts.failed += number,
            (number, "skipped" | "todo" | "pending") => counts.skipped += number,
            _ => return None,
        }
    }
    Some(counts)
}

/// `5 passing (12ms)`, then `1 pending` and `2 failing`.
pub(super) fn mocha(text: &str) -> Counts {
    let mut all = Counts::default();
    let mut in_summary = false;
    for line in text.lines().map(str::trim) {
        match counted(line) {
            Some((number, what)) if what.starts_with("passing (") && what.ends_with(')') => {
                all.passed += number;
                in_summary = true;
            }
            Some((number, "failing")) if in_summary => all.failed += number,
            Some((number, "pending")) if in_summary => all.skipped += number,
            _ if line.is_empty() => {}
            _ => in_summary = false,
        }
    }
    all
}
