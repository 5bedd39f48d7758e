//! Deletion ("forgetting") of a session or of one response. Nothing else deletes rows.
//!
//! Each deletion is recorded: which turns and samples were deleted, and which adapters were trained on them. It does
//! not change those adapters; the trainer reads the record and decides which to retire.

use rusqlite::types::FromSql;
use rusqlite::{OptionalExtension, Transaction};

use crate::clock::now_ms;
use crate::codec::{Json, Unsigned};
use crate::error::{DbError, JournalError};
use crate::experience;
use crate::ids::{SampleId, SessionId, TurnId};
use crate::journal::Journal;
use crate::readiness::require_session;
use crate::records::ForgetRecord;

impl Journal {
    /// Deletes a session with its requests, replies, feedback, verdicts, hints, receipts and samples, including trained
    /// samples, and records the deletion. The freed pages are overwritten. A running step that uses one of the samples
    /// is rejected by [`Journal::commit_step`].
    ///
    /// # Errors
    /// [`JournalError::UnknownSession`], and database errors.
    pub fn forget_session(&self, session: &SessionId) -> Result<ForgetRecord, JournalError> {
        let forgotten = self.write(|tx| {
            require_session(tx, session)?;
            let forgotten = record_deletion(tx, session, "session = ?1", session.as_str())?;
            tx.execute("DELETE FROM sessions WHERE id = ?1", [session.as_str()])?;
            experience::forget_without_sources(tx)?;
            Ok(forgotten)
        })?;
        self.truncate_wal(session);
        Ok(forgotten)
    }

    /// Deletes one response with its request, replies, feedback, verdicts, hints, receipts and samples, as
    /// [`Journal::forget_session`] does, and its session if nothing else is in it.
    ///
    /// # Errors
    /// [`JournalError::UnknownResponse`], and database errors.
    pub fn forget_response(&self, response_id: &str) -> Result<ForgetRecord, JournalError> {
        let forgotten = self.write(|tx| {
            let session: Option<String> = tx
                .query_row(
                    "SELECT session FROM turns WHERE response_id = ?1 LIMIT 1",
                    [response_id],
                    |row| row.get(0),
                )
                .optional()?;
            let session = session.ok_or_else(|| JournalError::UnknownResponse {
                response: response_id.to_owned(),
            })?;
            let session = SessionId(session);
            let forgotten = record_deletion(tx, &session, "response_id = ?1", response_id)?;
            tx.execute(
                "DELETE FROM requests WHERE id IN (SELECT request FROM turns WHERE response_id = ?1)",
                [response_id],
            )?;
            tx.execute(
                "DELETE FROM sessions WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM turns WHERE session = ?1)",
                [session.as_str()],
            )?;
            experience::forget_without_sources(tx)?;
            Ok(forgotten)
        })?;
        self.truncate_wal(&forgotten.session);
        Ok(forgotten)
    }

    /// Truncates the write-ahead log, which still holds the old pages.
    fn truncate_wal(&self, session: &SessionId) {
        // If a reader blocks this, the next checkpoint truncates it.
        let cleared = self.with_writer(|conn| {
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, i64>(0)
            })
        });
        if !matches!(cleared, Ok(0)) {
            tracing::debug!(?cleared, %session, "write-ahead log not truncated after a deletion; the next checkpoint does it");
        }
    }

    /// The recorded deletions, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn forget_records(&self, limit: u32) -> Result<Vec<ForgetRecord>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT dropped FROM forgotten ORDER BY id DESC LIMIT ?1")?;
            let rows = statement.query_map([limit], |row| {
                let Json(record) = row.get(0)?;
                Ok(record)
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Records the deletion of the turns of a session that satisfy the SQL condition `which`, before their rows are
/// deleted. `value` is the parameter of the condition.
fn record_deletion(
    tx: &Transaction<'_>,
    session: &SessionId,
    which: &str,
    value: &str,
) -> Result<ForgetRecord, DbError> {
    let of_turns = format!("turn IN (SELECT id FROM turns WHERE {which})");
    let count = |table: &str| -> Result<u64, DbError> {
        let sql = format!("SELECT COUNT(*) FROM {table} WHERE {of_turns}");
        Ok(tx
            .query_row(&sql, [value], |row| row.get::<_, Unsigned>(0))?
            .0)
    };
    let turns = format!("SELECT id FROM turns WHERE {which} ORDER BY id");
    let samples = format!("SELECT id FROM samples WHERE {of_turns} ORDER BY id");
    let forgotten = ForgetRecord {
        session: session.clone(),
        ms: now_ms(),
        turns: select(tx, &turns, value, TurnId)?,
        samples: select(tx, &samples, value, SampleId)?,
        verdicts: count("verdicts")?,
        hints: count("hints")?,
        experience: experience_of_only(tx, &of_turns, value)?,
        feedback: count("feedback")?,
        adapters: adapters_trained_on(tx, &of_turns, value)?,
    };
    let dropped =
        serde_json::to_string(&forgotten).map_err(|error| DbError::invalid(error.to_string()))?;
    tx.execute(
        "INSERT INTO forgotten (session, ms, dropped) VALUES (?1, ?2, ?3)",
        (session.as_str(), forgotten.ms, dropped),
    )?;
    Ok(forgotten)
}

/// The number of experience entries that come from these turns alone.
fn experience_of_only(tx: &Transaction<'_>, of_turns: &str, value: &str) -> Result<u64, DbError> {
    let sql = format!(
        "SELECT COUNT(*) FROM (SELECT entry FROM experience_sources GROUP BY entry
            HAVING MIN({of_turns}))"
    );
    let Unsigned(count) = tx.query_row(&sql, [value], |row| row.get(0))?;
    Ok(count)
}

/// The values of a column, each passed to `open`.
fn select<W: FromSql, T>(
    tx: &Transaction<'_>,
    sql: &str,
    value: &str,
    open: impl Fn(W) -> T,
) -> Result<Vec<T>, DbError> {
    let mut statement = tx.prepare(sql)?;
    let rows = statement.query_map([value], |row| row.get(0).map(&open))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Adapters whose step trained on these turns, and all their descendants.
fn adapters_trained_on(
    tx: &Transaction<'_>,
    of_turns: &str,
    value: &str,
) -> Result<Vec<u64>, DbError> {
    let sql = format!(
        "WITH RECURSIVE learned (version) AS (
            SELECT version FROM adapters WHERE step IN (
                SELECT step FROM samples WHERE {of_turns} AND state = 'trained')
            UNION
            SELECT a.version FROM adapters a JOIN learned l ON a.parent = l.version)
         SELECT version FROM learned ORDER BY version",
    );
    select(tx, &sql, value, |Unsigned(version)| version)
}
