//! Writes of the serving and collecting loops: requests, replies, session ends, user feedback.

use rusqlite::Transaction;

use crate::choice_groups;
use crate::clock::now_ms;
use crate::codec::{encode_f32s, encode_json, encode_u32s, finite};
use crate::error::{DbError, JournalError};
use crate::ids::{SessionId, TurnId};
use crate::journal::Journal;
use crate::readiness::{require_session, require_turn, update_readiness};
use crate::records::{Completion, Feedback, JudgingState, NewRequest, NextState, TurnState};
use crate::requests::{
    NextStateInsert, check_owner, insert_turns, record_fork, record_next_state,
    set_next_state_source, upsert_session,
};
use crate::retractions::retract;

/// Skip reason of a turn whose session ended before a next state arrived.
pub const NO_NEXT_STATE: &str = "no-next-state";
/// Abort reason of a turn that was being generated when the server stopped.
pub const SERVER_STOPPED: &str = "server stopped";

impl Journal {
    /// Records one request in one transaction: opens or reopens its session, writes the next states of earlier turns
    /// and inserts its new turns in state `generating`. Returns the ids of the new turns in order.
    ///
    /// A next state makes its turn a main turn, and ready for judging if its reply is complete, even if the session
    /// has ended in the meantime; an aborted or failed turn keeps the next state but is never judged. A turn has one
    /// next state: the first stays, and the same one again changes nothing. A different one is a fork of the
    /// conversation. It is recorded in [`crate::MatchRecord::fork_of`] of the turns of this request, or, if the request
    /// has no turns, in [`crate::MatchRecord::forks`] of the earlier turn. To replace a next
    /// state, retract the first one in the same [`NewRequest`].
    ///
    /// # Errors
    /// [`JournalError::UnknownTurn`] for a next state of a deleted turn; [`JournalError::Invalid`] for numbers or JSON
    /// nesting that could not be read back, and if session, turns and next states belong to different API keys; and
    /// database errors.
    pub fn record_request(&self, arrival: &NewRequest) -> Result<Vec<TurnId>, JournalError> {
        self.write(|tx| {
            upsert_session(tx, &arrival.session)?;
            check_owner(tx, arrival)?;
            for retraction in &arrival.retract {
                retract(tx, retraction)?;
            }
            let mut forks = Vec::new();
            for next in &arrival.next_state_of {
                if record_next_state(tx, next)? == NextStateInsert::Conflict {
                    forks.push(next);
                }
            }
            if arrival.turns.is_empty() {
                for fork in forks {
                    record_fork(tx, fork)?;
                }
                return Ok(Vec::new());
            }
            let fork_of: Vec<TurnId> = forks.iter().map(|fork| fork.turn).collect();
            let turns = insert_turns(tx, &arrival.session.id, &arrival.turns, &fork_of)?;
            let brought = arrival
                .next_state_of
                .iter()
                .filter(|next| next.source.is_none());
            for next in brought.filter(|next| !fork_of.contains(&next.turn)) {
                set_next_state_source(tx, next.turn, turns.first().copied())?;
            }
            Ok(turns)
        })
    }

    /// Records next states without a request, in one transaction: those that were held back as ambiguous until their
    /// session ended. A turn that already has a next state keeps it.
    ///
    /// # Errors
    /// As for the next states of [`Journal::record_request`].
    pub fn record_next_states(&self, next: &[NextState]) -> Result<(), JournalError> {
        self.write(|tx| {
            for next in next {
                record_next_state(tx, next)?;
            }
            Ok(())
        })
    }

    /// Records the complete reply of a turn that is being generated.
    ///
    /// # Errors
    /// [`JournalError::UnknownTurn`], [`JournalError::TurnEnded`] if a reply or a failure is already recorded,
    /// [`JournalError::Invalid`] if there is not exactly one logprob of each kind per token, or if a forced position is
    /// out of range.
    pub fn complete(&self, turn: TurnId, completion: &Completion) -> Result<(), JournalError> {
        self.write(|tx| {
            finish_turn(tx, turn, TurnState::Complete, None)?;
            insert_reply(tx, turn, completion)?;
            update_readiness(tx, turn)?;
            tx.prepare_cached(
                "UPDATE turns SET judging = 'skipped', reason = ?2 WHERE id = ?1 AND judging = 'waiting'
                 AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = session AND s.ended_ms IS NOT NULL)",
            )?
            .execute((turn.0, NO_NEXT_STATE))?;
            choice_groups::close_incomplete_group(tx, turn)
        })
    }

    /// Records that a turn failed (`failed`), or, with `partial`, that its reply was cut off (`aborted`). Such a turn
    /// is never judged.
    ///
    /// # Errors
    /// As [`Journal::complete`].
    pub fn fail(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<&Completion>,
    ) -> Result<(), JournalError> {
        let state = if partial.is_some() {
            TurnState::Aborted
        } else {
            TurnState::Failed
        };
        self.end_incomplete_turn(turn, reason, state, partial)
    }

    /// Records that a turn was cancelled (`aborted`), for example because the client disconnected. This is not a
    /// failure, even before the first token. Such a turn is never judged.
    ///
    /// # Errors
    /// As [`Journal::complete`].
    pub fn abort(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<&Completion>,
    ) -> Result<(), JournalError> {
        self.end_incomplete_turn(turn, reason, TurnState::Aborted, partial)
    }

    fn end_incomplete_turn(
        &self,
        turn: TurnId,
        reason: &str,
        state: TurnState,
        partial: Option<&Completion>,
    ) -> Result<(), JournalError> {
        self.write(|tx| {
            finish_turn(tx, turn, state, Some(reason))?;
            if let Some(completion) = partial {
                insert_reply(tx, turn, completion)?;
            }
            choice_groups::close_incomplete_group(tx, turn)
        })
    }

    /// Marks turns that were being generated when the previous server stopped as `aborted`. Call once at server start.
    /// Returns their number.
    ///
    /// # Errors
    /// Database errors.
    pub fn abort_interrupted_turns(&self) -> Result<u64, JournalError> {
        self.write(|tx| {
            let cut = tx.execute(
                "UPDATE turns SET state = 'aborted', judging = 'skipped', reason = ?1
                 WHERE state = 'generating'",
                [SERVER_STOPPED],
            )?;
            choice_groups::close_all_incomplete_groups(tx)?;
            Ok(u64::try_from(cut).expect("a number of rows fits in a u64"))
        })
    }

    /// Ends a session. Its turns without a next state are skipped with [`NO_NEXT_STATE`], and so are those still being
    /// generated when they complete. Feedback, or a next state if the client returns, makes them ready again. Ending an
    /// ended session changes nothing.
    ///
    /// # Errors
    /// [`JournalError::UnknownSession`].
    pub fn end_session(&self, session: &SessionId, reason: &str) -> Result<(), JournalError> {
        self.write(|tx| {
            let ended = tx
                .prepare_cached(
                    "UPDATE sessions SET ended_ms = ?2, end_reason = ?3
                     WHERE id = ?1 AND ended_ms IS NULL",
                )?
                .execute((session.as_str(), now_ms(), reason))?;
            if ended == 0 {
                return require_session(tx, session);
            }
            tx.prepare_cached(
                "UPDATE turns SET judging = 'skipped', reason = ?2
                 WHERE session = ?1 AND state = 'complete' AND judging = 'waiting'",
            )?
            .execute((session.as_str(), NO_NEXT_STATE))?;
            Ok(())
        })
    }

    /// Open sessions with no request or completion since `before_ms` and no running turn; longest idle first.
    ///
    /// # Errors
    /// Database errors.
    pub fn idle_sessions(&self, before_ms: i64) -> Result<Vec<SessionId>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT id FROM sessions s WHERE ended_ms IS NULL AND last_ms < ?1
                 AND NOT EXISTS (SELECT 1 FROM turns t
                                 WHERE t.session = s.id AND t.state = 'generating')
                 ORDER BY last_ms",
            )?;
            let ids = statement.query_map([before_ms], |row| Ok(SessionId(row.get(0)?)))?;
            Ok(ids.collect::<Result<_, _>>()?)
        })
    }

    /// Records user feedback on a turn and makes the turn ready for judging, even if it was judged before. Returns the
    /// id of the feedback. Feedback on an aborted or failed turn is stored but not judged.
    ///
    /// # Errors
    /// [`JournalError::UnknownTurn`]; [`JournalError::Invalid`] if the score is not in −1…1 or there is neither score
    /// nor text.
    pub fn add_feedback(&self, feedback: &Feedback) -> Result<i64, JournalError> {
        self.write(|tx| {
            let score = match feedback.score {
                Some(score) if !(-1.0..=1.0).contains(&score) => {
                    return Err(DbError::invalid(format!(
                        "the feedback score is {score}: expected a number from -1 to 1"
                    )));
                }
                Some(score) => Some(finite(score, "the feedback score")?),
                None if feedback
                    .text
                    .as_deref()
                    .is_none_or(|text| text.trim().is_empty()) =>
                {
                    return Err(DbError::invalid("feedback needs a score or a text"));
                }
                None => None,
            };
            require_turn(tx, feedback.turn)?;
            let id = tx
                .prepare_cached(
                    "INSERT INTO feedback (turn, score, text, ms) VALUES (?1, ?2, ?3, ?4)",
                )?
                .insert((
                    feedback.turn.0,
                    score,
                    feedback.text.as_deref(),
                    feedback.ms,
                ))?;
            update_readiness(tx, feedback.turn)?;
            Ok(id)
        })
    }
}

/// The only transition out of `generating`. Only complete replies are judged.
pub(crate) fn finish_turn(
    tx: &Transaction<'_>,
    turn: TurnId,
    to: TurnState,
    reason: Option<&str>,
) -> Result<(), DbError> {
    let judging = if to == TurnState::Complete {
        JudgingState::Waiting
    } else {
        JudgingState::Skipped
    };
    let moved = tx
        .prepare_cached(
            "UPDATE turns SET state = ?2, judging = ?3, reason = ?4
             WHERE id = ?1 AND state = 'generating'",
        )?
        .execute((turn.0, to, judging, reason))?;
    if moved == 0 {
        let (state, _) = require_turn(tx, turn)?;
        return Err(JournalError::TurnEnded { turn, state }.into());
    }
    Ok(())
}

pub(crate) fn insert_reply(
    tx: &Transaction<'_>,
    turn: TurnId,
    reply: &Completion,
) -> Result<(), DbError> {
    let tokens = reply.token_ids.len();
    let (sampled, full) = (reply.logprobs.len(), reply.full_logprobs.len());
    if tokens != sampled || tokens != full {
        return Err(DbError::invalid(format!(
            "turn {turn} has {tokens} tokens but {sampled} logprobs and {full} full logprobs: \
             expected one of each per token"
        )));
    }
    let ascending = reply.forced.is_sorted_by(|one, next| one < next);
    let last = reply.forced.last().copied().map_or(0, |last| last as usize);
    if !ascending || !reply.forced.is_empty() && last >= tokens {
        return Err(DbError::invalid(format!(
            "the forced positions of turn {turn} must be ascending and less than its {tokens} tokens"
        )));
    }
    tx.prepare_cached(
        "INSERT INTO replies (turn, ms, finish, anchor, body, token_ids, logprobs, full_logprobs, forced)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute((
        turn.0,
        reply.ms,
        reply.finish,
        reply.anchor.as_deref(),
        encode_json(&reply.reply)?,
        encode_u32s(&reply.token_ids),
        encode_f32s(&reply.logprobs),
        encode_f32s(&reply.full_logprobs),
        (!reply.forced.is_empty()).then(|| encode_u32s(&reply.forced)),
    ))?;
    tx.prepare_cached(
        "UPDATE sessions SET last_ms = MAX(last_ms, ?2)
         WHERE id = (SELECT session FROM turns WHERE id = ?1)",
    )?
    .execute((turn.0, reply.ms))?;
    Ok(())
}
