//! Reads untrusted files: components and their manifests.
//!
//! A path may name an endless device, a pipe without a writer, or a file larger than memory. So only regular files are
//! read, the type is checked on the opened file and not on the path, and the size is limited.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A pipe, a device, a directory or a socket.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// The file is larger than the limit.
    #[error("it has {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Size of the file, as far as it was read.
        size: u64,
        /// Largest allowed size.
        limit: u64,
    },
}

/// Reads a regular file of at most `limit` bytes. Follows symbolic links. Never blocks on a pipe.
///
/// # Errors
/// [`FileError`] when the file cannot be read, is not a regular file, or is larger.
pub fn read_regular_file(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular(file_type_name(metadata.file_type())));
    }
    let too_large = |size| FileError::TooLarge { size, limit };
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    // The file may have grown, and some files report no length.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Opens without blocking on a pipe and without acquiring a controlling terminal.
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

fn file_type_name(kind: FileType) -> &'static str {
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
    fn only_regular_files_within_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("good"), b"four").unwrap();
        assert_eq!(read_regular_file(&at("good"), 4).unwrap(), b"four");
        std::os::unix::fs::symlink(at("good"), at("link")).unwrap();
        assert_eq!(read_regular_file(&at("link"), 4).unwrap(), b"four");

        // A pipe without a writer, an endless device, and a sparse file of 6 GiB.
        mknodat(CWD, at("pipe"), Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        File::create(at("sparse"))
            .unwrap()
            .set_len(6 << 30)
            .unwrap();
        let error = |path: &Path, limit| read_regular_file(path, limit).unwrap_err().to_string();
        assert!(error(&at("pipe"), 100).contains("a named pipe"));
        assert!(error(Path::new("/dev/zero"), 100).contains("a device"));
        assert!(error(&at("directory"), 100).contains("a directory"));
        assert!(error(&at("sparse"), 64 << 20).contains("6442450944 bytes"));
        assert!(error(&at("good"), 3).contains("the limit is 3"));
        assert!(matches!(
            read_regular_file(&at("missing"), 100),
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound
        ));
    }
}
