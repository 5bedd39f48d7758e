//! Standard output and report files. All writes to standard output go through here. A reader that has gone away (`|
//! head`) is not an error.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints a line or block of text.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let result = if text.ends_with('\n') {
        out.write_all(text.as_bytes())
    } else {
        writeln!(out, "{text}")
    };
    match result.and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&serde_json::to_string(value)?)
}

/// Prints the result of a command that succeeded: as one line of JSON, or as text.
pub(crate) fn print_result(
    json: bool,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<ExitCode> {
    if json {
        print_json(value)?;
    } else {
        print(&text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns an error if a report cannot be written to `out`. Called before the work starts, so that minutes of it are
/// not lost.
pub(crate) fn check_writable(out: &Path) -> Result<()> {
    anyhow::ensure!(
        !out.is_dir(),
        "{} is a directory; pass a file name with --out",
        out.display()
    );
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = out
        .file_name()
        .with_context(|| format!("{} is not a file name; pass one with --out", out.display()))?
        .to_string_lossy();
    let probe = folder.join(format!(".{name}.{}", std::process::id()));
    std::fs::write(&probe, b"")
        .and_then(|()| std::fs::remove_file(&probe))
        .with_context(|| {
            format!(
                "cannot write a report to {}; pass another path with --out",
                folder.display()
            )
        })
}

/// Text without line breaks, with control characters escaped.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let mut escaped = String::new();
    for character in lines.join(" ").chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// The word that a value is written as in the configuration.
///
/// # Panics
/// If the value is not written as a string.
pub(crate) fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("a word can be written");
    value.as_str().expect("the value is a word").to_owned()
}

/// The items with a separator between them, or `none` if there are no items.
pub(crate) fn join_or(items: &[String], separator: &str, none: &str) -> String {
    if items.is_empty() {
        none.to_owned()
    } else {
        items.join(separator)
    }
}

/// The text on one line, truncated to `most` characters.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_truncated_to_one_line_without_control_characters() {
        assert_eq!(shorten("a\nb\u{1b}[2J", 80), "a b\\u{1b}[2J");
        assert_eq!(shorten(&"ä".repeat(9), 4), "ääää…");
        assert_eq!(shorten("abcd", 4), "abcd");
    }

    #[test]
    fn an_unwritable_report_path_is_rejected() {
        let error = check_writable(Path::new("/nowhere-at-all/report.html")).unwrap_err();
        assert!(error.to_string().contains("--out"), "{error}");
        assert!(check_writable(&std::env::temp_dir()).is_err());
    }
}
