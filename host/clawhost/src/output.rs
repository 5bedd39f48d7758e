//! Standard output, the one place that writes to it. A reader that has gone away (`| head`) is not an
//! error.

use std::io::{ErrorKind, Write};

use anyhow::Result;
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
