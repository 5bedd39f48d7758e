//! Results of tools: exit codes, error fields, tracebacks, test summaries. Plain output tells nothing.

mod calls;
#[cfg(test)]
mod cases;
mod errors;
mod fields;
mod summary;

use calls::{begins_like_a_shell_error, found_nothing, reads_data};
use errors::is_error_line;
use fields::{exit_code, json_fields};
use summary::test_summary;

use crate::reading::{Kind, Reading};

/// Bytes of a result that are read at either end; the middle is data.
const HEAD: usize = 2_000;
const TAIL: usize = 4_000;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Sign {
    /// Why, and whether that names the cause.
    Failed(String, bool),
    Worked(String),
    /// Output that says neither.
    Plain,
    Empty,
}

/// Reads results of tools: -1 if at least half of them are failures, +1 if none is and one reports success. `call` is the
/// text of the calls.
pub(crate) fn read_all(results: &[String], call: &str) -> Option<Reading> {
    let signs: Vec<Sign> = results.iter().map(|result| read(result, call)).collect();
    let failed: Vec<(&str, bool)> = signs
        .iter()
        .filter_map(|sign| match sign {
            Sign::Failed(why, names_cause) => Some((why.as_str(), *names_cause)),
            _ => None,
        })
        .collect();
    let other = signs
        .iter()
        .filter(|sign| matches!(sign, Sign::Worked(_) | Sign::Plain))
        .count();
    if let Some((why, names_cause)) = failed.first() {
        if failed.len() < other {
            return None;
        }
        return Some(Reading {
            score: -1.0,
            kind: Kind::ToolFailed,
            reason: format!(
                "{} of {} tool results failed: {why}",
                failed.len(),
                signs.len()
            ),
            is_concrete: *names_cause,
        });
    }
    let worked: Vec<&str> = signs
        .iter()
        .filter_map(|sign| match sign {
            Sign::Worked(why) => Some(why.as_str()),
            _ => None,
        })
        .collect();
    let why = worked.first()?;
    Some(Reading {
        score: 1.0,
        kind: Kind::ToolPassed,
        reason: format!(
            "{} of {} tool results succeeded: {why}",
            worked.len(),
            signs.len()
        ),
        is_concrete: false,
    })
}

fn read(result: &str, call: &str) -> Sign {
    let text = ends(result);
    let text = text.trim();
    if text.is_empty() {
        return Sign::Empty;
    }
    let is_data = reads_data(call) && text.lines().count() > 2;
    if let Some(sign) = exit_code(text) {
        let nothing_found = matches!(sign, Sign::Failed(..)) && found_nothing(text);
        return if nothing_found { Sign::Plain } else { sign };
    }
    if is_data {
        // What a file or a log says of errors is not about this call.
        return text
            .lines()
            .next()
            .filter(|line| begins_like_a_shell_error(line))
            .map_or(Sign::Plain, failure);
    }
    if let Some(sign) = json_fields(text) {
        return sign;
    }
    if let Some(sign) = test_summary(text) {
        return sign;
    }
    if let Some(line) = text.lines().find(|line| is_error_line(line)) {
        // The last line of a traceback has the cause.
        let cause = text
            .lines()
            .rev()
            .find(|line| is_error_line(line) && !line.starts_with("Traceback"));
        return failure(cause.unwrap_or(line));
    }
    if reports_success(text) {
        return Sign::Worked("says that it succeeded".to_owned());
    }
    Sign::Plain
}

/// `Successfully wrote 7 bytes to note.txt`, `File created successfully.`: one line that a tool for an action prints.
fn reports_success(text: &str) -> bool {
    let lower = text.to_lowercase();
    lower.lines().count() == 1
        && (lower.starts_with("successfully ")
            || lower
                .trim_end_matches(['.', '!'])
                .ends_with(" successfully"))
        && !["not ", "never ", "n't "]
            .iter()
            .any(|no| lower.contains(no))
}

/// What the output of a program says that a person pasted: +1 for passed tests, -1 for an error.
pub(crate) fn read_pasted(text: &str) -> Option<Reading> {
    if text.lines().count() < 2 {
        return None;
    }
    let (score, kind, reason, is_concrete) = match test_summary(text) {
        Some(Sign::Failed(why, _)) => (-1.0, Kind::Miss, why, true),
        Some(Sign::Worked(why)) => (1.0, Kind::Acceptance, why, false),
        _ => {
            let line = text.lines().rev().find(|line| is_error_line(line))?;
            let line: String = line.trim().chars().take(100).collect();
            (-1.0, Kind::Miss, format!("pastes \"{line}\""), true)
        }
    };
    Some(Reading {
        score,
        kind,
        reason,
        is_concrete,
    })
}

fn failure(line: &str) -> Sign {
    let short: String = line.trim().chars().take(100).collect();
    let lower = short.to_lowercase();
    let is_bare = [
        "killed",
        "segmentation fault",
        "aborted",
        "core dumped",
        "timed out",
        "timeout",
    ]
    .iter()
    .any(|crash| lower.starts_with(crash));
    Sign::Failed(
        format!("\"{short}\""),
        !is_bare && lower.split_whitespace().count() > 2,
    )
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
