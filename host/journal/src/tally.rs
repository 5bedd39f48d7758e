//! The running count that the journal keeps of itself: rows by table, and commits.
//!
//! Triggers move the rows (`schema/0011.sql`), each write transaction counts itself. It decides nothing: [`crate::check`]
//! compares it with what is there.

use rusqlite::{Connection, Transaction};

use crate::codec::Natural;
use crate::error::Fault;

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

/// The schema that brought the tally.
pub(crate) const SINCE: u32 = 9;

/// What a commit leaves behind, as far as the mark beside the journal repeats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Which journal it is of.
    pub(crate) journal: String,
    /// Write transactions, ever.
    pub(crate) commits: u64,
    pub(crate) turns: u64,
    pub(crate) steps: u64,
}

/// Counts the transaction that is about to be committed.
pub(crate) fn count_commit(tx: &Transaction<'_>) -> Result<Tally, Fault> {
    let mut statement = tx.prepare_cached(
        "UPDATE tally SET commits = commits + 1 RETURNING journal, commits, turns, steps",
    )?;
    Ok(statement.query_row([], tally)?)
}

/// Reads the tally.
pub(crate) fn read(conn: &Connection) -> Result<Tally, Fault> {
    let sql = "SELECT journal, commits, turns, steps FROM tally";
    Ok(conn.query_row(sql, [], tally)?)
}

fn tally(row: &rusqlite::Row<'_>) -> rusqlite::Result<Tally> {
    let count = |column: &str| row.get::<_, Natural>(column).map(|Natural(count)| count);
    Ok(Tally {
        journal: row.get("journal")?,
        commits: count("commits")?,
        turns: count("turns")?,
        steps: count("steps")?,
    })
}
