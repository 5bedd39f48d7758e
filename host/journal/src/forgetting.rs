//! Forgetting a session: the one act that takes rows away.
//!
//! It is itself recorded: which turns and samples are gone, and which adapters had learned from them.
//! It does not undo the learning; the trainer reads the record and decides what to retire.

use rusqlite::Transaction;

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
            let id = session.as_str();
            let of_turns = "turn IN (SELECT id FROM turns WHERE session = ?1)";
            let count = |table: &str| -> Result<u64, Fault> {
                let sql = format!("SELECT COUNT(*) FROM {table} WHERE {of_turns}");
                Ok(tx.query_row(&sql, [id], |row| row.get::<_, Natural>(0))?.0)
            };
            let forgotten = Forgotten {
                session: session.clone(),
                ms: now_ms(),
                turns: numbers(
                    tx,
                    "SELECT id FROM turns WHERE session = ?1 ORDER BY id",
                    id,
                )?
                .into_iter()
                .map(TurnId)
                .collect(),
                samples: numbers(
                    tx,
                    &format!("SELECT id FROM samples WHERE {of_turns} ORDER BY id"),
                    id,
                )?
                .into_iter()
                .map(SampleId)
                .collect(),
                verdicts: count("verdicts")?,
                hints: count("hints")?,
                feedback: count("feedback")?,
                adapters: learned_from(tx, session)?,
            };
            let dropped = serde_json::to_string(&forgotten)
                .map_err(|error| Fault::invalid(error.to_string()))?;
            tx.execute(
                "INSERT INTO forgotten (session, ms, dropped) VALUES (?1, ?2, ?3)",
                (id, forgotten.ms, dropped),
            )?;
            tx.execute("DELETE FROM sessions WHERE id = ?1", [id])?;
            Ok(forgotten)
        })?;
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
        Ok(forgotten)
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

fn numbers(tx: &Transaction<'_>, sql: &str, session: &str) -> Result<Vec<i64>, Fault> {
    let mut statement = tx.prepare(sql)?;
    let rows = statement.query_map([session], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Adapters made by steps that trained the session, and all that descend from them.
fn learned_from(tx: &Transaction<'_>, session: &SessionId) -> Result<Vec<u64>, Fault> {
    let mut statement = tx.prepare(
        "WITH RECURSIVE learned (version) AS (
            SELECT version FROM adapters WHERE step IN (
                SELECT s.step FROM samples s JOIN turns t ON t.id = s.turn
                WHERE t.session = ?1 AND s.state = 'trained')
            UNION
            SELECT a.version FROM adapters a JOIN learned l ON a.parent = l.version)
         SELECT version FROM learned ORDER BY version",
    )?;
    let rows = statement.query_map([session.as_str()], |row| row.get::<_, Natural>(0))?;
    let versions: Vec<Natural> = rows.collect::<Result<_, _>>()?;
    Ok(versions.into_iter().map(|version| version.0).collect())
}
