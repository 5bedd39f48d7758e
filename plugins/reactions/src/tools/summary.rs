//! Summaries of test runs.

use super::Sign;

/// `3 failed, 12 passed`, `test result: FAILED`, `Failures: 2`, `--- FAIL:`, `7/10 tests passed`, `OK (5 tests)`.
pub(super) fn test_summary(text: &str) -> Option<Sign> {
    let mut passed = None;
    let mut failed = None;
    let mut cause = None;
    for line in text.lines().rev().take(80) {
        let lower = line.trim().to_lowercase();
        let begins = |starts: &[&str]| starts.iter().any(|start| lower.starts_with(start));
        if begins(&["assertionerror", "assertion failed", "e   ", "assert "])
            || (lower.contains("expected") || lower.contains(" want"))
                && (lower.contains("got")
                    || lower.contains("actual")
                    || lower.contains("received")
                    || lower.contains("found")
                    || lower.contains(" want"))
            || lower.contains("assertionerror")
            || lower.contains("left:")
            || begins(&["expected", "received", "- expected", "+ received"])
        {
            cause.get_or_insert_with(|| line.trim().chars().take(100).collect::<String>());
        }
        let counts = [
            count_before(
                &lower,
                &[
                    " failed",
                    " failures",
                    " failure",
                    " failing",
                    " errors",
                    " tests failed",
                    " test failed",
                ],
            ),
            count_after(
                &lower,
                &[
                    "failures:",
                    "failed:",
                    "errors:",
                    "failing:",
                    "error=",
                    "errors=",
                    "fail=",
                    "failed=",
                ],
            ),
        ];
        for count in counts.into_iter().flatten() {
            if count > 0 {
                failed.get_or_insert_with(|| format!("{count} failed"));
            } else {
                passed.get_or_insert("no test failed");
            }
        }
        if begins(&[
            "--- fail",
            "fail:",
            "fail ",
            "fail\t",
            "wrong answer",
            "failed ",
            "failed (",
            "not ok ",
            "✗",
            "✕",
            "✘",
            "❌",
        ]) || lower == "fail"
            || lower == "failed"
            || lower.contains("test result: failed")
            || lower.contains("not passed")
            || lower.contains(": fail code")
            || lower.ends_with(": fail")
            || lower.ends_with(": failed")
            || lower.ends_with("failed!")
        {
            failed.get_or_insert_with(|| line.trim().chars().take(60).collect());
        }
        if let Some((good, all)) = ratio(&lower)
            && (lower.contains("pass") || lower.contains("test") || lower.contains("correct"))
        {
            if good < all {
                failed.get_or_insert_with(|| format!("{good} of {all} passed"));
            } else {
                passed.get_or_insert("all passed");
            }
        }
        let is_pass = count_before(
            &lower,
            &[" passed", " passing", " tests passed", " test passed"],
        )
        .is_some_and(|count| count > 0)
            || count_after(&lower, &["passed:", "pass=", "passed="]).is_some_and(|count| count > 0)
            || lower.contains("test result: ok")
            || lower.contains("all tests pass")
            || lower.contains("tests passed")
            || begins(&[
                "ok (",
                "ok  ",
                "ok\t",
                "✓",
                "✔",
                "√",
                "--- pass",
                "pass ",
                "passed ",
                "build success",
                "all checks passed",
            ])
            || lower
                .strip_prefix("ok ")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            || matches!(lower.as_str(), "pass" | "passed" | "passed!" | "ok")
            || lower.ends_with("[100%]") && lower.starts_with('.');
        if is_pass {
            passed.get_or_insert("tests passed");
        }
    }
    if let Some(why) = failed {
        let names_cause = cause.is_some();
        return Some(Sign::Failed(
            cause.map_or(why.clone(), |cause| format!("{why}: {cause}")),
            names_cause,
        ));
    }
    // A single "ok" is plain output.
    passed
        .filter(|_| text.len() > 3)
        .map(|why| Sign::Worked(why.to_owned()))
}

fn count_before(line: &str, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let (before, after) = line.split_once(name)?;
        if after.starts_with(char::is_alphabetic) {
            return None;
        }
        // "Tests run: 33, Failures: 0" counts no 33 failures.
        let word = before.split_whitespace().last()?;
        if word.ends_with(',') {
            return None;
        }
        word.trim_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .ok()
    })
}

/// `Failures: 3`, `Failed:     0`: the largest of the counts.
fn count_after(line: &str, names: &[&str]) -> Option<u64> {
    names
        .iter()
        .filter_map(|name| {
            let (_, after) = line.split_once(name)?;
            let digits: String = after
                .trim_start()
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            digits.parse().ok()
        })
        .max()
}

/// `3/10`.
fn ratio(line: &str) -> Option<(u64, u64)> {
    line.split_whitespace().find_map(|word| {
        let (good, all) = word
            .trim_matches(|c: char| !c.is_ascii_digit())
            .split_once('/')?;
        let all: u64 = all.parse().ok()?;
        (all > 0).then_some((good.parse().ok()?, all))
    })
}
