//! Reads files that others may have put there: components and what lies beside them.
//!
//! What stands at a path may be a device that never ends, a pipe that nobody writes to, or larger than memory. So only
//! regular files are read, what was opened is looked at and not its name, and never more than a limit.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A pipe, a device, a directory or a socket.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// More bytes than are read.
    #[error("it has {size} bytes, at most {limit} are read")]
    TooLarge {
        /// Bytes of the file, as far as they were counted.
        size: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
}

/// The bytes of a regular file of at most `limit` bytes. Links are followed. Never waits for a writer.
///
/// # Errors
/// [`FileError`] when it cannot be read, is no regular file, or is larger.
pub fn read_regular_file(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(FileError::NotRegular(described(found.file_type())));
    }
    let too_large = |size| FileError::TooLarge { size, limit };
    if found.len() > limit {
        return Err(too_large(found.len()));
    }
    let mut bytes = Vec::new();
    // It may have grown, and some files do not say how long they are.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Opens without waiting: a pipe has a reader at once, and a terminal does not become this process's.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

fn described(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a named pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() {
        "a directory"
    } else {
        "something else"
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    #[test]
    fn only_regular_files_within_the_limit_are_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("good"), b"four").unwrap();
        assert_eq!(read_regular_file(&at("good"), 4).unwrap(), b"four");
        std::os::unix::fs::symlink(at("good"), at("link")).unwrap();
        assert_eq!(read_regular_file(&at("link"), 4).unwrap(), b"four");

        // Nobody ever writes to it; /dev/zero never ends; 6 GB that take no room on the disk.
        mknodat(CWD, at("pipe"), Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        File::create(at("sparse"))
            .unwrap()
            .set_len(6 << 30)
            .unwrap();
        let said = |path: &Path, limit| read_regular_file(path, limit).unwrap_err().to_string();
        assert!(said(&at("pipe"), 100).contains("a named pipe"));
        assert!(said(Path::new("/dev/zero"), 100).contains("a device"));
        assert!(said(&at("directory"), 100).contains("a directory"));
        assert!(said(&at("sparse"), 64 << 20).contains("6442450944 bytes"));
        assert!(said(&at("good"), 3).contains("at most 3"));
        assert!(matches!(
            read_regular_file(&at("missing"), 100),
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound
        ));
    }
}
