//! Decides when a turn is ready for judging, and looks up its states.
//!
//! A turn is ready when it is complete and has evidence (a next state or feedback) that no judgement has seen. Only
//! [`update_readiness`] decides this; every write that adds evidence or completes a reply calls it.

use rusqlite::{OptionalExtension, Transaction};

use crate::error::{DbError, JournalError};
use crate::ids::{SessionId, TurnId};
use crate::records::{JudgingState, TurnState};

/// Makes a complete turn ready for judging if it has evidence that no judgement has seen.
pub(crate) fn update_readiness(tx: &Transaction<'_>, turn: TurnId) -> Result<(), DbError> {
    tx.prepare_cached(
        "UPDATE turns SET judging = 'ready', reason = NULL
         WHERE id = ?1 AND state = 'complete' AND judging <> 'ready'
         AND ((next_judged = 0 AND EXISTS (SELECT 1 FROM next_states WHERE turn = ?1))
              OR EXISTS (SELECT 1 FROM feedback WHERE turn = ?1 AND judged = 0))",
    )?
    .execute([turn.0])?;
    Ok(())
}

/// The generation and judging states of a turn; an error if there is no such turn.
pub(crate) fn require_turn(
    tx: &Transaction<'_>,
    turn: TurnId,
) -> Result<(TurnState, JudgingState), DbError> {
    tx.prepare_cached("SELECT state, judging FROM turns WHERE id = ?1")?
        .query_row([turn.0], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or_else(|| JournalError::UnknownTurn { turn }.into())
}

pub(crate) fn require_session(tx: &Transaction<'_>, session: &SessionId) -> Result<(), DbError> {
    tx.prepare_cached("SELECT 1 FROM sessions WHERE id = ?1")?
        .query_row([session.as_str()], |_| Ok(()))
        .optional()?
        .ok_or_else(|| {
            JournalError::UnknownSession {
                session: session.clone(),
            }
            .into()
        })
}
