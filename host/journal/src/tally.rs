//! The `tally` table: running counts of rows per table and of commits.
//!
//! Triggers update the row counts (`schema/0011.sql`), and each write transaction increments the commit count.
//! [`crate::check`] compares the counts with the actual rows.

use rusqlite::{Connection, Transaction};

use crate::codec::Unsigned;
use crate::error::DbError;

/// The counted tables, parents before children.
pub(crate) const TABLES: [&str; 11] = [
    "sessions",
    "requests",
    "turns",
    "replies",
    "next_states",
    "feedback",
    "verdicts",
    "hints",
    "samples",
    "steps",
    "adapters",
];

/// The first schema version with a tally.
pub(crate) const FIRST_SCHEMA: u32 = 9;

/// The counts that the commit watermark repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Id of the journal.
    pub(crate) journal: String,
    /// Write transactions since the journal was created.
    pub(crate) commits: u64,
    pub(crate) turns: u64,
    pub(crate) steps: u64,
}

/// Counts the transaction that is about to be committed.
pub(crate) fn count_commit(tx: &Transaction<'_>) -> Result<Tally, DbError> {
    let mut statement = tx.prepare_cached(
        "UPDATE tally SET commits = commits + 1 RETURNING journal, commits, turns, steps",
    )?;
    Ok(statement.query_row([], tally)?)
}

/// Reads the tally.
pub(crate) fn read(conn: &Connection) -> Result<Tally, DbError> {
    let sql = "SELECT journal, commits, turns, steps FROM tally";
    Ok(conn.query_row(sql, [], tally)?)
}

fn tally(row: &rusqlite::Row<'_>) -> rusqlite::Result<Tally> {
    let count = |column: &str| row.get::<_, Unsigned>(column).map(|Unsigned(count)| count);
    Ok(Tally {
        journal: row.get("journal")?,
        commits: count("commits")?,
        turns: count("turns")?,
        steps: count("steps")?,
    })
}
