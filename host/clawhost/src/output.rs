//! Standard output and report files. All writes to standard output go through here. A reader that has gone away (`|
//! head`) is not an error.

use std::io::{ErrorKind, Write};
use std::path::Path;

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
    let name = out.file_name().unwrap_or_default().to_string_lossy();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritable_report_path_is_rejected() {
        let error = check_writable(Path::new("/nowhere-at-all/report.html")).unwrap_err();
        assert!(error.to_string().contains("--out"), "{error}");
        assert!(check_writable(&std::env::temp_dir()).is_err());
    }
}
