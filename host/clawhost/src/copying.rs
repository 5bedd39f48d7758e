//! File copies that are flushed to disk and readable by their owner only.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result};
use clawhost_journal::private;
use sha2::{Digest, Sha256};

/// Bytes read at a time.
const CHUNK: usize = 1 << 16;

/// Copies a file and flushes it to disk.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    try_copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn try_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    private::restrict(to)?;
    flush(to)
}

/// Copies the files of a directory. Files that disappear meanwhile are skipped; a missing directory is not an error.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", from.display()))?,
    };
    private::create_dir(to).with_context(|| format!("cannot create directory {}", to.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot read {}", from.display()))?
            .path();
        let place = to.join(path.file_name().expect("an entry has a name"));
        match try_copy(&path, &place) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => copied.with_context(|| {
                format!("cannot copy {} to {}", path.display(), place.display())
            })?,
        }
    }
    Ok(())
}

/// Flushes a file or directory to disk.
pub(crate) fn flush(path: &Path) -> io::Result<()> {
    File::open(path).and_then(|file| file.sync_all())
}

/// Flushes a directory and its subdirectories, without their files.
pub(crate) fn flush_dirs(dir: &Path) -> Result<()> {
    let unreadable = || format!("cannot flush {}", dir.display());
    for entry in fs::read_dir(dir).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        if path.is_dir() {
            flush_dirs(&path)?;
        }
    }
    flush(dir).with_context(unreadable)
}

/// sha256 of a file.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(unreadable)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk).with_context(unreadable)? {
            0 => break,
            read => hash.update(&chunk[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
