//! Retracting a next state: the request that brought it turned out not to continue the conversation.
//!
//! It is an explicit act on the record. The next state moves to the retractions of its turn with the reason, judgements
//! that saw it refer to it, a sample made of them is withdrawn unless it has trained, and the turn waits for the real one.

use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use crate::codec::Json;
use crate::collecting::{refresh, require_turn};
use crate::error::{Fault, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::{Evidence, NewRetraction, Retraction};

/// Why a queued sample was dropped when the next state that it was judged by was retracted.
pub const RETRACTED: &str = "its next state was retracted";

impl Journal {
    /// The turn whose request brought the next state of `turn`: none without a next state, `Some(None)` where it is
    /// not known.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn next_source(&self, turn: TurnId) -> Result<Option<Option<TurnId>>, JournalError> {
        self.read(|conn| {
            let source = conn
                .prepare_cached("SELECT source FROM next_states WHERE turn = ?1")?
                .query_row([turn.0], |row| row.get::<_, Option<i64>>(0))
                .optional()?;
            Ok(source.map(|source| source.map(TurnId)))
        })
    }
}

/// Moves the next state of a turn to its retractions.
pub(crate) fn retract(tx: &Transaction<'_>, new: &NewRetraction) -> Result<(), Fault> {
    let turn = new.turn.0;
    require_turn(tx, new.turn)?;
    let id = tx
        .prepare_cached(
            "INSERT INTO retractions (turn, ms, reason, source, came_ms, messages, judged)
             SELECT n.turn, ?2, ?3, n.source, n.ms, n.messages, t.next_judged
             FROM next_states n JOIN turns t ON t.id = n.turn WHERE n.turn = ?1
             RETURNING id",
        )?
        .query_row((turn, new.ms, &new.reason), |row| row.get::<_, i64>(0))
        .optional()?;
    let Some(id) = id else {
        return Err(Fault::invalid(format!(
            "turn {turn} has no next state that could be retracted"
        )));
    };
    tx.prepare_cached("DELETE FROM next_states WHERE turn = ?1")?
        .execute([turn])?;
    tx.prepare_cached(
        "UPDATE judgements SET retraction = ?2
         WHERE turn = ?1 AND next_state = 1 AND retraction IS NULL",
    )?
    .execute((turn, id))?;
    tx.prepare_cached(
        "UPDATE samples SET state = 'dropped', reason = ?2
         WHERE turn = ?1 AND state = 'queued'
         AND EXISTS (SELECT 1 FROM turns t WHERE t.id = ?1 AND t.next_judged = 1)",
    )?
    .execute((turn, RETRACTED))?;
    tx.prepare_cached(
        "UPDATE turns SET next_judged = 0,
            reason = CASE WHEN state = 'complete' THEN NULL ELSE reason END,
            judging = CASE WHEN state = 'complete' THEN 'waiting' ELSE judging END
         WHERE id = ?1",
    )?
    .execute([turn])?;
    refresh(tx, new.turn)
}

/// Whether a judgement saw a next state that was retracted meanwhile.
pub(crate) fn is_outdated(
    tx: &Transaction<'_>,
    turn: TurnId,
    evidence: Option<Evidence>,
) -> Result<bool, Fault> {
    let Some(seen) = evidence.filter(|seen| seen.next_state) else {
        return Ok(false);
    };
    let retractions: i64 = tx
        .prepare_cached("SELECT COUNT(*) FROM retractions WHERE turn = ?1")?
        .query_row([turn.0], |row| row.get(0))?;
    Ok(i64::try_from(seen.retractions) != Ok(retractions))
}

/// The retractions of a turn, oldest first.
pub(crate) fn of_turn(conn: &Connection, turn: TurnId) -> Result<Vec<Retraction>, Fault> {
    let mut statement =
        conn.prepare_cached("SELECT * FROM retractions WHERE turn = ?1 ORDER BY id")?;
    let found = statement.query_map([turn.0], retraction)?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// One retraction by its number.
pub(crate) fn numbered(conn: &Connection, id: Option<i64>) -> Result<Option<Retraction>, Fault> {
    let Some(id) = id else { return Ok(None) };
    let mut statement = conn.prepare_cached("SELECT * FROM retractions WHERE id = ?1")?;
    Ok(statement.query_row([id], retraction).optional()?)
}

fn retraction(row: &Row<'_>) -> rusqlite::Result<Retraction> {
    let Json(messages) = row.get("messages")?;
    Ok(Retraction {
        id: row.get("id")?,
        turn: TurnId(row.get("turn")?),
        reason: row.get("reason")?,
        ms: row.get("ms")?,
        source: row.get::<_, Option<i64>>("source")?.map(TurnId),
        messages,
        came_ms: row.get("came_ms")?,
        judged: row.get("judged")?,
    })
}
