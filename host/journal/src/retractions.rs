//! Retraction of a next state whose request turned out not to continue the conversation.
//!
//! A retraction is recorded. The next state moves, with the reason, to the `retractions` of its turn; judgements that
//! saw it refer to the retraction; a sample made from them is dropped unless it has trained; and the turn waits for
//! another next state.

use rusqlite::{OptionalExtension, Transaction};

use crate::error::{DbError, JournalError};
use crate::experience;
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::readiness::{require_turn, update_readiness};
use crate::records::{Evidence, NewRetraction};

/// Drop reason of a queued sample whose judgement used a next state that was retracted.
pub const NEXT_STATE_RETRACTED: &str = "its next state was retracted";

impl Journal {
    /// The turn whose request supplied the next state of `turn`: `None` without a next state, `Some(None)` if the
    /// source is not known.
    ///
    /// # Errors
    /// Database errors.
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
pub(crate) fn retract(tx: &Transaction<'_>, new: &NewRetraction) -> Result<(), DbError> {
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
        return Err(DbError::invalid(format!(
            "turn {turn} has no next state to retract"
        )));
    };
    tx.prepare_cached("DELETE FROM next_states WHERE turn = ?1")?
        .execute([turn])?;
    tx.prepare_cached(
        "UPDATE judgements SET retraction = ?2
         WHERE turn = ?1 AND next_state = 1 AND retraction IS NULL",
    )?
    .execute((turn, id))?;
    experience::remove_retracted(tx, new.turn)?;
    tx.prepare_cached(
        "UPDATE samples SET state = 'dropped', reason = ?2
         WHERE turn = ?1 AND state = 'queued'
         AND EXISTS (SELECT 1 FROM turns t WHERE t.id = ?1 AND t.next_judged = 1)",
    )?
    .execute((turn, NEXT_STATE_RETRACTED))?;
    tx.prepare_cached(
        "UPDATE turns SET next_judged = 0,
            reason = CASE WHEN state = 'complete' THEN NULL ELSE reason END,
            judging = CASE WHEN state = 'complete' THEN 'waiting' ELSE judging END
         WHERE id = ?1",
    )?
    .execute([turn])?;
    update_readiness(tx, new.turn)
}

/// Whether a judgement saw a next state that was retracted in the meantime.
pub(crate) fn saw_retracted_next_state(
    tx: &Transaction<'_>,
    turn: TurnId,
    evidence: Option<Evidence>,
) -> Result<bool, DbError> {
    let Some(seen) = evidence.filter(|seen| seen.next_state) else {
        return Ok(false);
    };
    let retractions: i64 = tx
        .prepare_cached("SELECT COUNT(*) FROM retractions WHERE turn = ?1")?
        .query_row([turn.0], |row| row.get(0))?;
    Ok(i64::try_from(seen.retractions) != Ok(retractions))
}
