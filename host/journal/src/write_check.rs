//! Write check: tests by writing whether the journal is writable.

use crate::error::JournalError;
use crate::journal::Journal;
use crate::steps::put_meta;

/// Key of the `meta` entry that the check writes.
const PROBE: &str = "write_check";

impl Journal {
    /// Writes and commits about as much as a turn does (16 KiB, replacing the last check's value). A smaller write could
    /// still fit into the write-ahead log of a full disk. Does not notify [`Journal::watch`].
    ///
    /// # Errors
    /// The error that would keep a turn from being recorded: [`JournalError::DiskFull`], `ReadOnly`, `Busy` or another
    /// database error.
    pub fn check_writable(&self) -> Result<(), JournalError> {
        self.write_silent(|tx| {
            // Random, because SQLite does not write unchanged pages.
            let filler: String =
                tx.query_row("SELECT hex(randomblob(8192))", [], |row| row.get(0))?;
            put_meta(tx, PROBE, &filler)
        })
    }
}
