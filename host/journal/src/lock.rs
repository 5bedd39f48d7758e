//! The lock file that limits a data directory to one server.
//!
//! SQLite would let two servers write one file, and both would train the same samples. The operating system releases
//! the lock when the process dies, so a kill needs no cleanup.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::JournalError;
use crate::private;

/// The lock; dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Acquires the lock of a data directory, or returns an error that names the holder.
    pub(crate) fn acquire(dir: &Path) -> Result<Lock, JournalError> {
        let path = dir.join("journal.lock");
        let io_error = |source| JournalError::Io {
            path: path.clone(),
            source,
        };
        let mut options = private::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .and_then(|file| private::restrict(&path).map(|()| file))
            .map_err(io_error)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let holder = match file.read_to_string(&mut text) {
                    Ok(_) => text.trim().parse().ok(),
                    Err(_) => None,
                };
                return Err(JournalError::Locked {
                    dir: dir.to_path_buf(),
                    holder,
                });
            }
            Err(TryLockError::Error(source)) => return Err(io_error(source)),
        }
        // The process id only serves the error message of another server; a full disk must not fail here.
        let noted = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(file, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::debug!(%error, "cannot write the process id to the lock file");
        }
        Ok(Lock { _file: file })
    }
}
