//! Whether the journal can be written now, found out by writing.

use crate::error::JournalError;
use crate::journal::Journal;
use crate::training::put_meta;

/// Key of the entry that a check writes.
const PROBE: &str = "write_check";

impl Journal {
    /// Writes and commits about as much as a turn does (16 KiB, over what the last check wrote). A smaller write could
    /// still fit into the write-ahead log of a full disk. Wakes no loop.
    ///
    /// # Errors
    /// What keeps a turn from being recorded: [`JournalError::Full`], `ReadOnly`, `Busy` or another fault of the
    /// database.
    pub fn check_writable(&self) -> Result<(), JournalError> {
        self.write_aside(|tx| {
            // Random, because SQLite skips pages that stay as they are.
            let filler: String =
                tx.query_row("SELECT hex(randomblob(8192))", [], |row| row.get(0))?;
            put_meta(tx, PROBE, &filler)
        })
    }
}
