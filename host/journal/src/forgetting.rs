//! Forgetting a session, or one response of it: the one act that takes rows away.
//!
//! It is itself recorded: which turns and samples are gone, and which adapters had learned from them.
//! It does not undo the learning; the trainer reads the record and decides what to retire.

use rusqlite::{OptionalExtension, Transaction};

use crate::clock::now_ms;
use crate::codec::Natural;
use crate::collecting::require_session;
use crate::error::{Fault, JournalError};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::journal::Journal;
use crate::records::Forgotten;

impl Journal {
    /// Drops a session with its requests, replies, feedback, verdicts, hints, receipts and samples, trained
    /// ones included, and records the act. The freed pages are overwritten. A step that is under way
    /// with one of the samples will be refused by [`Journal::commit_step`].
    ///
    /// # Errors
    /// [`JournalError::UnknownSession`], and the faults of the database.
    pub fn forget_session(&self, session: &SessionId) -> Result<Forgotten, JournalError> {
        let forgotten = self.write(|tx| {
            require_session(tx, session)?;
            let forgotten = record(tx, session, "session = ?1", session.as_str())?;
            tx.execute("DELETE FROM sessions WHERE id = ?1", [session.as_str()])?;
            Ok(forgotten)
        })?;
        self.clear_log(session);
        Ok(forgotten)
    }

    /// Drops one response with its request, replies, feedback, verdicts, hints, receipts and samples, as
    /// [`Journal::forget_session`] does; and its session when nothing else is in it.
    ///
    /// # Errors
    /// [`JournalError::UnknownResponse`], and the faults of the database.
    pub fn forget_response(&self, response_id: &str) -> Result<Forgotten, JournalError> {
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
            let forgotten = record(tx, &session, "response_id = ?1", response_id)?;
            tx.execute(
                "DELETE FROM requests WHERE id IN (SELECT request FROM turns WHERE response_id = ?1)",
                [response_id],
            )?;
            tx.execute(
                "DELETE FROM sessions WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM turns WHERE session = ?1)",
                [session.as_str()],
            )?;
            Ok(forgotten)
        })?;
        self.clear_log(&forgotten.session);
        Ok(forgotten)
    }

    /// Clears the write-ahead log of pages that were overwritten in the database.
    fn clear_log(&self, session: &SessionId) {
        // The old pages are still in the write-ahead log. A reader may hold it; then the next
        // checkpoint clears it.
        let cleared = self.with_writer(|conn| {
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, i64>(0)
            })
        });
        if !matches!(cleared, Ok(0)) {
            tracing::debug!(?cleared, %session, "write-ahead log not yet cleared after forgetting");
        }
    }

    /// The acts of forgetting, newest first.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn forgotten(&self, limit: u32) -> Result<Vec<Forgotten>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT dropped FROM forgotten ORDER BY id DESC LIMIT ?1")?;
            let rows = statement.query_map([limit], |row| {
                let text: String = row.get(0)?;
                serde_json::from_str(&text).map_err(|error| {
                    rusqlite::Error::FromSqlConversionFailure(
                        0,
                        rusqlite::types::Type::Text,
                        Box::new(error),
                    )
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Records that the turns of a session for which `which` holds are forgotten, before their rows go. `value` is the
/// parameter of the condition.
fn record(
    tx: &Transaction<'_>,
    session: &SessionId,
    which: &str,
    value: &str,
) -> Result<Forgotten, Fault> {
    let of_turns = format!("turn IN (SELECT id FROM turns WHERE {which})");
    let count = |table: &str| -> Result<u64, Fault> {
        let sql = format!("SELECT COUNT(*) FROM {table} WHERE {of_turns}");
        Ok(tx
            .query_row(&sql, [value], |row| row.get::<_, Natural>(0))?
            .0)
    };
    let turns = format!("SELECT id FROM turns WHERE {which} ORDER BY id");
    let samples = format!("SELECT id FROM samples WHERE {of_turns} ORDER BY id");
    let forgotten = Forgotten {
        session: session.clone(),
        ms: now_ms(),
        turns: numbers(tx, &turns, value)?
            .into_iter()
            .map(TurnId)
            .collect(),
        samples: numbers(tx, &samples, value)?
            .into_iter()
            .map(SampleId)
            .collect(),
        verdicts: count("verdicts")?,
        hints: count("hints")?,
        feedback: count("feedback")?,
        adapters: learned_from(tx, &of_turns, value)?,
    };
    let dropped =
        serde_json::to_string(&forgotten).map_err(|error| Fault::invalid(error.to_string()))?;
    tx.execute(
        "INSERT INTO forgotten (session, ms, dropped) VALUES (?1, ?2, ?3)",
        (session.as_str(), forgotten.ms, dropped),
    )?;
    Ok(forgotten)
}

fn numbers(tx: &Transaction<'_>, sql: &str, value: &str) -> Result<Vec<i64>, Fault> {
    let mut statement = tx.prepare(sql)?;
    let rows = statement.query_map([value], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Adapters made by steps that trained these turns, and all that descend from them.
fn learned_from(tx: &Transaction<'_>, of_turns: &str, value: &str) -> Result<Vec<u64>, Fault> {
    let mut statement = tx.prepare(&format!(
        "WITH RECURSIVE learned (version) AS (
            SELECT version FROM adapters WHERE step IN (
                SELECT step FROM samples WHERE {of_turns} AND state = 'trained')
            UNION
            SELECT a.version FROM adapters a JOIN learned l ON a.parent = l.version)
         SELECT version FROM learned ORDER BY version",
    ))?;
    let rows = statement.query_map([value], |row| row.get::<_, Natural>(0))?;
    let versions: Vec<Natural> = rows.collect::<Result<_, _>>()?;
    Ok(versions.into_iter().map(|version| version.0).collect())
}
