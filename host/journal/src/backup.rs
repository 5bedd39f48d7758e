//! A copy of the journal at one instant, while it is written.

use std::path::Path;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use crate::error::{Fault, JournalError};
use crate::journal::{Journal, open_reader};
use crate::private;

impl Journal {
    /// Copies one instant of the journal to a new file, flushed to the disk. Commits go on meanwhile and are not in it.
    ///
    /// # Errors
    /// [`JournalError::Folder`] when there is such a file already or it cannot be made, and the faults of the database.
    pub fn backup(&self, to: &Path) -> Result<(), JournalError> {
        let unusable = |source| JournalError::Folder {
            path: to.to_path_buf(),
            source,
        };
        let mut options = private::options();
        options
            .write(true)
            .create_new(true)
            .open(to)
            .map_err(unusable)?;
        let copy = || {
            let from = open_reader(self.path())?;
            let mut conn = Connection::open(to)?;
            // In one step: a backup in several begins anew whenever another process commits in between.
            if Backup::new(&from, &mut conn)?.step(-1)? != StepResult::Done {
                let path = self.path().to_path_buf();
                return Err(JournalError::Busy { path }.into());
            }
            // One file that can be read where nothing can be written.
            conn.pragma_update(None, "journal_mode", "DELETE")?;
            let found: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if found != "ok" {
                let path = self.path().to_path_buf();
                return Err(JournalError::Damaged {
                    path,
                    detail: found,
                }
                .into());
            }
            Ok(())
        };
        copy().map_err(|fault: Fault| fault.at(self.path()))?;
        std::fs::File::open(to)
            .and_then(|file| file.sync_all())
            .map_err(unusable)
    }
}
