//! Rule 5: results of tools: exit codes, error fields, tracebacks, test summaries.

use clawhost_sdk::Vote;

/// Bytes of a result that are read at either end; the middle is data.
const HEAD: usize = 2_000;
const TAIL: usize = 4_000;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Sign {
    Failed(String),
    Worked(String),
    Unclear,
}

/// Votes -1 if at least half of the results are failures, +1 if none is.
pub(crate) fn vote(results: &[String]) -> Option<Vote> {
    let signs: Vec<Sign> = results.iter().map(|result| read(result)).collect();
    let mut failed = Vec::new();
    let mut worked = Vec::new();
    for sign in &signs {
        match sign {
            Sign::Failed(why) => failed.push(why.as_str()),
            Sign::Worked(why) => worked.push(why.as_str()),
            Sign::Unclear => {}
        }
    }
    if let Some(why) = failed.first() {
        if failed.len() < worked.len() {
            return None;
        }
        return Some(Vote::new(
            -1.0,
            format!(
                "{} of {} tool results failed: {why}",
                failed.len(),
                signs.len()
            ),
        ));
    }
    let why = worked.first()?;
    Some(Vote::new(
        1.0,
        format!(
            "{} of {} tool results succeeded: {why}",
            worked.len(),
            signs.len()
        ),
    ))
}

fn read(result: &str) -> Sign {
    let text = ends(result);
    let text = text.trim();
    if text.is_empty() {
        return Sign::Unclear;
    }
    if let Some(sign) = exit_code(text) {
        return sign;
    }
    if let Some(sign) = json_fields(text) {
        return sign;
    }
    if let Some(sign) = test_summary(text) {
        return sign;
    }
    if let Some(line) = text.lines().find(|line| is_error_line(line)) {
        let line: String = line.trim().chars().take(100).collect();
        return Sign::Failed(format!("\"{line}\""));
    }
    Sign::Worked("no sign of an error".to_owned())
}

fn ends(text: &str) -> String {
    if text.len() <= HEAD + TAIL {
        return text.to_owned();
    }
    let head = text.get(..text.floor_char_boundary(HEAD)).unwrap_or("");
    let tail = text
        .get(text.ceil_char_boundary(text.len() - TAIL)..)
        .unwrap_or("");
    format!("{head}\n{tail}")
}

/// `exit code: 1`, `"exit_code": 0`, `Process exited with status 2`, `returncode=1`.
fn exit_code(text: &str) -> Option<Sign> {
    let lower = text.to_ascii_lowercase();
    for name in [
        "exit code",
        "exit_code",
        "exitcode",
        "exit status",
        "exit_status",
        "return code",
        "returncode",
        "return_code",
        "exited with code",
        "exited with status",
        "exited with",
        "status code",
        "http status",
        "statuscode",
        "status_code",
    ] {
        let Some((_, after)) = lower.split_once(name) else {
            continue;
        };
        let after = after.trim_start_matches(['"', '\'', ':', '=', ' ', '\t', '(']);
        let after = after.strip_prefix("of ").unwrap_or(after);
        let number: String = after
            .chars()
            .enumerate()
            .take_while(|(i, c)| c.is_ascii_digit() || (*i == 0 && *c == '-'))
            .map(|(_, c)| c)
            .collect();
        let Ok(code) = number.parse::<i64>() else {
            continue;
        };
        let is_http = name.starts_with("status") || name.starts_with("http");
        let good = if is_http {
            (0..400).contains(&code)
        } else {
            code == 0
        };
        let why = format!("{} {code}", name.replace('_', " "));
        return Some(if good {
            Sign::Worked(why)
        } else {
            Sign::Failed(why)
        });
    }
    None
}

/// `"error": "…"`, `"success": false`, `"status": "ok"` in a JSON object.
fn json_fields(text: &str) -> Option<Sign> {
    if !text.starts_with('{') && !text.starts_with("[{") {
        return None;
    }
    let field = |name: &str| -> Option<String> {
        let (_, after) = text.split_once(&format!("\"{name}\""))?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let inner = value.strip_prefix('"').unwrap_or(value);
        let end = if value.starts_with('"') {
            inner.find('"').unwrap_or(inner.len())
        } else {
            inner.find([',', '}', '\n']).unwrap_or(inner.len())
        };
        Some(inner.get(..end)?.trim().to_ascii_lowercase())
    };
    for name in [
        "error",
        "errors",
        "error_message",
        "exception",
        "is_error",
        "isError",
        "traceback",
        "failed",
    ] {
        if let Some(value) = field(name) {
            let none = ["", "null", "none", "false", "0", "[]", "{}", "{", "["];
            let empty_list = value == "[" && text.contains("[]");
            if !none.contains(&value.as_str())
                || (matches!(value.as_str(), "{" | "[") && !empty_list)
            {
                return Some(Sign::Failed(format!(
                    "\"{name}\": {}",
                    value.chars().take(80).collect::<String>()
                )));
            }
        }
    }
    for name in ["success", "ok", "succeeded", "passed"] {
        match field(name).as_deref() {
            Some("false" | "0") => return Some(Sign::Failed(format!("\"{name}\": false"))),
            Some("true" | "1") => return Some(Sign::Worked(format!("\"{name}\": true"))),
            _ => {}
        }
    }
    match field("status").as_deref() {
        Some(
            status @ ("error" | "failed" | "failure" | "fail" | "timeout" | "denied" | "forbidden"
            | "not_found"),
        ) => Some(Sign::Failed(format!("\"status\": {status}"))),
        Some(status @ ("ok" | "success" | "succeeded" | "done" | "completed" | "passed")) => {
            Some(Sign::Worked(format!("\"status\": {status}")))
        }
        _ => None,
    }
}

/// `3 failed, 12 passed`, `test result: FAILED`, `Tests: 2 failed`, `OK (5 tests)`.
fn test_summary(text: &str) -> Option<Sign> {
    let mut passed = None;
    for line in text.lines().rev().take(60) {
        let lower = line.to_ascii_lowercase();
        if let Some(count) = count_before(&lower, &[" failed", " failures", " failing", " errors"])
        {
            if count > 0 {
                return Some(Sign::Failed(format!("{count} failed")));
            }
            passed.get_or_insert("no test failed");
        }
        if lower.contains("test result: failed") || lower.trim_start().starts_with("failed (") {
            return Some(Sign::Failed("tests failed".to_owned()));
        }
        if count_before(&lower, &[" passed", " passing"]).is_some_and(|count| count > 0)
            || lower.contains("test result: ok")
        {
            passed.get_or_insert("tests passed");
        }
    }
    passed.map(|why| Sign::Worked(why.to_owned()))
}

fn count_before(line: &str, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let (before, _) = line.split_once(name)?;
        let word = before.split_whitespace().last()?;
        word.trim_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .ok()
    })
}

/// A line that begins like an error or explicitly is one. Data that merely mentions errors does not count.
fn is_error_line(line: &str) -> bool {
    let line = line.trim();
    let lower = line.to_ascii_lowercase();
    let begins = [
        "error:",
        "error[",
        "error -",
        "error ",
        "fatal:",
        "fatal error",
        "exception:",
        "exception in",
        "traceback (most recent call last)",
        "panic:",
        "panicked",
        "thread '",
        "uncaught ",
        "unhandled ",
        "segmentation fault",
        "killed",
        "aborted",
        "npm err!",
        "npm error",
        "build failed",
        "failed:",
        "failure:",
        "failed to ",
        "permission denied",
        "access denied",
        "no such file",
        "command not found",
        "cannot ",
        "can't ",
        "could not ",
        "couldn't ",
        "unable to ",
        "invalid ",
        "timeout",
        "timed out",
        "bash:",
        "sh:",
        "usage:",
        "unknown option",
        "unknown command",
        "syntax error",
        "syntaxerror",
        "typeerror",
        "nameerror",
        "valueerror",
        "keyerror",
        "indexerror",
        "attributeerror",
        "importerror",
        "modulenotfounderror",
        "zerodivisionerror",
        "filenotfounderror",
        "runtimeerror",
        "assertionerror",
        "referenceerror",
        "http error",
        "httperror",
        "connection refused",
        "not found",
        "tool error",
        "tool call failed",
        "[error]",
        "❌",
        "denied:",
        "e: ",
        "make: ***",
        "rate limit",
    ];
    let error_word = lower.split(':').next().is_some_and(|head| {
        (head.ends_with("error") || head.ends_with("exception"))
            && !head.contains(' ')
            && lower.contains(':')
    });
    let says = [
        ": command not found",
        ": no such file or directory",
        ": permission denied",
        ": error:",
        ": fatal error:",
        "panicked at",
        "core dumped",
        "segmentation fault",
        "connection refused",
        "timed out after",
        "is not recognized as",
        "unexpected token",
        "stack overflow",
        "out of memory",
        "command timed out",
    ];
    let zero = [
        "error: 0",
        "errors: 0",
        "error: none",
        "error: null",
        "error ratio",
        "error rate",
        "error count: 0",
    ];
    !zero.iter().any(|zero| lower.starts_with(zero))
        && (error_word
            || begins.iter().any(|begin| lower.starts_with(begin))
            || says.iter().any(|say| lower.contains(say)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_and_failure_of_tools_are_distinguished() {
        let failed = [
            "exit code: 1\n",
            "{\"exit_code\": 127, \"stdout\": \"\"}",
            "Process exited with status 2",
            "Command failed with exit status 1",
            "Traceback (most recent call last):\n  File \"a.py\", line 1\nNameError: name 'x' is not defined",
            "bash: foo: command not found",
            "cat: a.txt: No such file or directory",
            "error[E0308]: mismatched types",
            "src/a.c:3:1: error: expected ';'",
            "{\"error\": \"file not found\"}",
            "{\"success\": false}",
            "{\"status\": \"error\", \"message\": \"x\"}",
            "{\"error\": {\"code\": 3}}",
            "===== 2 failed, 3 passed in 0.1s =====",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored",
            "thread 'main' panicked at src/main.rs:2:5",
            "Error: cannot divide by zero",
            "Timed out",
            "npm ERR! missing script: test",
            "TypeError: undefined is not a function",
            "status code: 404",
        ];
        for text in failed {
            assert!(
                matches!(read(text), Sign::Failed(_)),
                "{text:?} is {:?}",
                read(text)
            );
        }
        let worked = [
            "exit code: 0",
            "{\"exit_code\": 0, \"stdout\": \"warning: error in comment\"}",
            "a.txt\nb.txt",
            "{\"error\": null, \"result\": 3}",
            "{\"errors\": [], \"result\": 3}",
            "{\"success\": true}",
            "===== 5 passed in 0.1s =====",
            "test result: ok. 5 passed; 0 failed; 0 ignored",
            "The error rate fell in 2024.",
            "42",
            "HTTP status: 200",
            "fn handle(error: Error) -> String {",
        ];
        for text in worked {
            assert!(
                matches!(read(text), Sign::Worked(_)),
                "{text:?} is {:?}",
                read(text)
            );
        }
        assert_eq!(read("  \n"), Sign::Unclear);
    }

    #[test]
    fn several_results_vote_together() {
        let vote = |results: &[&str]| {
            let results: Vec<String> = results.iter().map(|r| (*r).to_owned()).collect();
            vote(&results).map(|vote| vote.score)
        };
        assert_eq!(vote(&["exit code: 0", "ok"]), Some(1.0));
        assert_eq!(vote(&["exit code: 1", "ok"]), Some(-1.0));
        assert_eq!(vote(&["exit code: 1", "ok", "fine"]), None);
        assert_eq!(vote(&[""]), None);
    }

    #[test]
    fn both_ends_of_a_huge_result_are_read() {
        let text = format!(
            "{}\nexit code: 1",
            "error-free line of text\n".repeat(100_000)
        );
        assert!(matches!(read(&text), Sign::Failed(_)));
    }
}
