//! One server per data folder.
//!
//! SQLite would let two servers write one file; both would then train the same samples. The
//! operating system gives the lock back when the process dies, so a kill needs no cleaning up.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::JournalError;
use crate::private;

/// Held for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a data folder, or says who has it.
    pub(crate) fn take(dir: &Path) -> Result<Lock, JournalError> {
        let path = dir.join("journal.lock");
        let unusable = |source| JournalError::Folder {
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
            .map_err(unusable)?;
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
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        // Who holds it is a courtesy to the next one who asks; a full disk must not stop us here.
        let noted = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(file, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::debug!(%error, "process id not noted in the lock file");
        }
        Ok(Lock { _file: file })
    }
}
