//! Files of the machine, opened by the supervisor in the machine's root directory and without capabilities.
//!
//! Links resolve as they do for a process in the machine, except the magic links of `/proc`. Only regular files are read
//! and written, so that no pipe or device makes the supervisor wait.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::error::SandboxError;
use crate::protocol::Reply;

type Answer = Result<(Reply, Vec<u8>), SandboxError>;

/// Reads a file of at most `max_bytes`. A relative path starts in `/work`.
pub(super) fn read(path: &str, max_bytes: usize) -> Answer {
    let file = open(path, OFlags::RDONLY).map_err(|error| failed(path, &error))?;
    let mut bytes = Vec::new();
    let limit = max_bytes as u64 + 1;
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(path, &error))?;
    if bytes.len() > max_bytes {
        return Err(SandboxError::QuotaExceeded(format!(
            "{path} has more than {max_bytes} bytes"
        )));
    }
    Ok((Reply::File, bytes))
}

/// Replaces a file and creates the directories that it is in.
pub(super) fn write(path: &str, bytes: &[u8]) -> Answer {
    let written = create_parents(path)
        .and_then(|()| open(path, OFlags::WRONLY | OFlags::CREATE))
        .and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(bytes)
        });
    written.map_err(|error| failed(path, &error))?;
    Ok((Reply::Done, Vec::new()))
}

fn create_parents(path: &str) -> io::Result<()> {
    let path = Path::new(path);
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a path with .. cannot be written",
        ));
    }
    match path.parent() {
        Some(parent) if parent != Path::new("") => std::fs::create_dir_all(parent),
        _ => Ok(()),
    }
}

fn open(path: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::from_raw_mode(0o644),
        false => Mode::empty(),
    };
    let fd = openat2(CWD, path, flags, mode, ResolveFlags::NO_MAGICLINKS)?;
    match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(File::from(fd)),
        FileType::Directory => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )),
    }
}

fn failed(path: &str, error: &io::Error) -> SandboxError {
    let message = format!("{path}: {error}");
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => SandboxError::NotFound(message),
        io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge | io::ErrorKind::QuotaExceeded => {
            SandboxError::QuotaExceeded(message)
        }
        _ => SandboxError::Denied(message),
    }
}
