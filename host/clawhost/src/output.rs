//! Standard output, the one place that writes to it, and files that reports are written to. A reader
//! that has gone away (`| head`) is not an error.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes one line or block.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = if text.ends_with('\n') {
        out.write_all(text.as_bytes())
    } else {
        writeln!(out, "{text}")
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes one value as one line of JSON.
pub(crate) fn say_json(value: &impl Serialize) -> Result<()> {
    say(&serde_json::to_string(value)?)
}

/// Refuses a place that a report could not be written to. After minutes of work that would be worse than
/// before them.
pub(crate) fn check_writable(out: &Path) -> Result<()> {
    anyhow::ensure!(
        !out.is_dir(),
        "{} is a directory; name a file for the report with --out",
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
                "cannot write a report to {}; name another place with --out",
                folder.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_written_is_refused_before_the_run() {
        let error = check_writable(Path::new("/nowhere-at-all/report.html")).unwrap_err();
        assert!(error.to_string().contains("--out"), "{error}");
        assert!(check_writable(&std::env::temp_dir()).is_err());
    }
}
