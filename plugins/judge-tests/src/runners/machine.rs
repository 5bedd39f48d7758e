//! TAP and JUnit XML.

use super::counts::{Counts, whole};

/// `1..4`, `ok 1 - name`, `not ok 2 - name`. Planned tests that are missing count as failed; a text without a plan is not
/// TAP. Subtests are indented and belong to their parent.
pub(super) fn tap(text: &str) -> Counts {
    let mut counts = Counts::default();
    let mut plan = None;
    for line in text.lines() {
        if let Some(last) = line.trim_end().strip_prefix("1..") {
            let last = last.split(['#', ' ']).next().unwrap_or(last);
            plan = whole(last).or(plan);
        } else if let Some(rest) = result(line, "ok") {
            if has_directive(rest, "skip") {
                counts.skipped += 1;
            } else {
                counts.passed += 1;
            }
        } else if let Some(rest) = result(line, "not ok") {
            if has_directive(rest, "todo") || has_directive(rest, "skip") {
                counts.skipped += 1;
            } else {
                counts.failed += 1;
            }
        }
    }
    let Some(plan) = plan else {
        return Counts::default();
    };
    let seen = counts.passed + counts.failed + counts.skipped;
    counts.failed += plan.saturating_sub(seen);
    counts
}

/// The text after `ok` or `not ok` on its own line.
fn result<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(word)?;
    (rest.is_empty() || rest.starts_with(' ')).then_some(rest)
}

fn has_directive(rest: &str, directive: &str) -> bool {
    rest.rsplit_once('#').is_some_and(|(_, found)| {
        let found = found.trim_start();
        found
            .get(..directive.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(directive))
    })
}

/// `<testsuites tests="5" failures="1" errors="0">`, or the suites in it if it has no numbers. For nested suites the outer one
/// counts.
pub(super) fn junit(text: &str) -> Counts {
    let mut all = Counts::default();
    // Nesting depth inside of a counted element.
    let mut counted_depth = 0usize;
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let Some(end) = rest.find('>') else { break };
        let tag = &rest[..end];
        let is_open = tag.starts_with("testsuite") && !tag.ends_with('/');
        if tag.starts_with("/testsuite") {
            counted_depth = counted_depth.saturating_sub(1);
        } else if counted_depth > 0 {
            counted_depth += usize::from(is_open);
        } else if let Some(counts) = suite(tag) {
            all += counts;
            counted_depth = usize::from(is_open);
        }
    }
    all
}

fn suite(tag: &str) -> Option<Counts> {
    let name = tag.split([' ', '\n', '\t']).next()?;
    if name != "testsuite" && name != "testsuites" {
        return None;
    }
    let tests = attribute(tag, "tests")?;
    let number = |name| attribute(tag, name).unwrap_or(0);
    let failed = number("failures") + number("errors");
    let skipped = number("skipped") + number("disabled");
    let passed = tests.checked_sub(failed)?.checked_sub(skipped)?;
    Some(Counts::new(passed, failed, skipped))
}

fn attribute(tag: &str, name: &str) -> Option<u64> {
    for quote in ['"', '\''] {
        for before in [' ', '\n', '\t'] {
            let start = format!("{before}{name}={quote}");
            if let Some((_, rest)) = tag.split_once(start.as_str()) {
                return whole(rest.split(quote).next()?);
            }
        }
    }
    None
}
