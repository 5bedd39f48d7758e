//! Online backup of the journal.

use std::path::Path;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use crate::connection::open_reader;
use crate::error::{DbError, JournalError};
use crate::journal::Journal;
use crate::private;

impl Journal {
    /// Copies a snapshot of the journal to a new file and flushes it. Concurrent commits continue and are not in it.
    ///
    /// # Errors
    /// [`JournalError::Io`] if the file exists or cannot be created, and database errors.
    pub fn backup(&self, to: &Path) -> Result<(), JournalError> {
        let io_error = |source| JournalError::Io {
            path: to.to_path_buf(),
            source,
        };
        let mut options = private::options();
        options
            .write(true)
            .create_new(true)
            .open(to)
            .map_err(io_error)?;
        let copy = || {
            let from = open_reader(self.path())?;
            let mut conn = Connection::open(to)?;
            // In one step: a backup in several steps restarts whenever another process commits in between.
            if Backup::new(&from, &mut conn)?.step(-1)? != StepResult::Done {
                let path = self.path().to_path_buf();
                return Err(JournalError::Busy { path }.into());
            }
            // A single file without a write-ahead log, readable on read-only media.
            conn.pragma_update(None, "journal_mode", "DELETE")?;
            let found: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if found != "ok" {
                let path = self.path().to_path_buf();
                return Err(JournalError::Corrupt {
                    path,
                    detail: found,
                }
                .into());
            }
            Ok(())
        };
        copy().map_err(|error: DbError| error.with_path(self.path()))?;
        std::fs::File::open(to)
            .and_then(|file| file.sync_all())
            .map_err(io_error)
    }
}
