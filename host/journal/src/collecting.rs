//! What comes in: requests, replies, the end of a session, what a user says of a reply.
//!
//! A turn is ready for judging when it is complete and has evidence (a next state, feedback) that
//! no judgement has seen. [`refresh`] is the only place that decides it, so every act that adds
//! evidence or completes a reply ends there.

use rusqlite::{OptionalExtension, Transaction};

use crate::arriving::{
    Followed, insert_turns, note_fork, record_next_state, require_one_owner, set_source,
    upsert_session,
};
use crate::clock::now_ms;
use crate::codec::{encode_f32s, encode_json, encode_u32s, finite};
use crate::error::{Fault, JournalError};
use crate::ids::{SessionId, TurnId};
use crate::journal::Journal;
use crate::records::{Arrival, Completion, Feedback, JudgingState, NextState, TurnState};
use crate::retracting::retract;
use crate::together;

/// Why a turn was skipped whose session ended before anything followed it.
pub const NO_NEXT_STATE: &str = "no-next-state";
/// Why a turn was aborted that was being generated when the server stopped.
pub const SERVER_STOPPED: &str = "server stopped";

impl Journal {
    /// Records one request: opens or reopens its session, writes the next state of the turns that it
    /// answers, and makes its new turns, in state `generating`. All of it or nothing. Gives the ids
    /// of the new turns in their order.
    ///
    /// A next state makes its turn a main turn, and ready for judging if its reply is complete, also
    /// when the session had ended meanwhile; a turn that was aborted or failed keeps it but is
    /// never judged. A turn has one next state: the first stays. A second, different one is a fork of
    /// the conversation and is recorded in `matched` of the turns that came with it, as
    /// `"fork_of": [turn, …]`; when no turn came with it, in `matched` of the older turn, as
    /// `"forks": [{"ms", "messages"}, …]`. The same one again changes nothing. To give a turn another one, retract the
    /// first in the same arrival.
    ///
    /// # Errors
    /// [`JournalError::UnknownTurn`] for a next state of a turn that is gone, [`JournalError::Invalid`]
    /// for numbers or nesting that could not be read back and where session, turns and next states are not
    /// of one key, and the faults of the database.
    pub fn arrive(&self, arrival: &Arrival) -> Result<Vec<TurnId>, JournalError> {
        self.write(|tx| {
            upsert_session(tx, &arrival.session)?;
            require_one_owner(tx, arrival)?;
            for retraction in &arrival.retract {
                retract(tx, retraction)?;
            }
            let mut forks = Vec::new();
            for next in &arrival.next_state_of {
                if record_next_state(tx, next)? == Followed::Otherwise {
                    forks.push(next);
                }
            }
            if arrival.turns.is_empty() {
                for fork in forks {
                    note_fork(tx, fork)?;
                }
                return Ok(Vec::new());
            }
            let fork_of: Vec<i64> = forks.iter().map(|fork| fork.turn.0).collect();
            let turns = insert_turns(tx, &arrival.session.id, &arrival.turns, &fork_of)?;
            let brought = arrival
                .next_state_of
                .iter()
                .filter(|next| next.source.is_none());
            for next in brought.filter(|next| !fork_of.contains(&next.turn.0)) {
                set_source(tx, next.turn, turns.first().copied())?;
            }
            Ok(turns)
        })
    }

    /// Records next states apart from a request: those that were held back in doubt until their session ended. All of
    /// them or nothing; a turn that has one keeps it.
    ///
    /// # Errors
    /// As for the next states of [`Journal::arrive`].
    pub fn record_next_states(&self, next: &[NextState]) -> Result<(), JournalError> {
        self.write(|tx| {
            for next in next {
                record_next_state(tx, next)?;
            }
            Ok(())
        })
    }

    /// Records the whole reply of a turn that is being generated.
    ///
    /// # Errors
    /// [`JournalError::UnknownTurn`], [`JournalError::TurnEnded`] when a reply or a failure is recorded
    /// already, [`JournalError::Invalid`] when there is not one log-prob of each kind per token, or when what
    /// was forced is no place of a token.
    pub fn complete(&self, turn: TurnId, completion: &Completion) -> Result<(), JournalError> {
        self.write(|tx| {
            leave_generating(tx, turn, TurnState::Complete, None)?;
            insert_reply(tx, turn, completion)?;
            refresh(tx, turn)?;
            tx.prepare_cached(
                "UPDATE turns SET judging = 'skipped', reason = ?2 WHERE id = ?1 AND judging = 'waiting'
                 AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = session AND s.ended_ms IS NOT NULL)",
            )?
            .execute((turn.0, NO_NEXT_STATE))?;
            together::ended(tx, turn)
        })
    }

    /// Records that a turn came to nothing (`failed`) or, when `partial` is given, that it was cut
    /// (`aborted`) and how far it had come. Such a turn is skipped by judging for ever.
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
        self.cut(turn, reason, state, partial)
    }

    /// Records that nobody waited for a turn any longer (`aborted`), however far it had come: that
    /// is no failure, even before the first token. Skipped by judging for ever.
    ///
    /// # Errors
    /// As [`Journal::complete`].
    pub fn abort(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<&Completion>,
    ) -> Result<(), JournalError> {
        self.cut(turn, reason, TurnState::Aborted, partial)
    }

    fn cut(
        &self,
        turn: TurnId,
        reason: &str,
        state: TurnState,
        partial: Option<&Completion>,
    ) -> Result<(), JournalError> {
        self.write(|tx| {
            leave_generating(tx, turn, state, Some(reason))?;
            if let Some(completion) = partial {
                insert_reply(tx, turn, completion)?;
            }
            together::ended(tx, turn)
        })
    }

    /// To be called once when a server starts: turns that were being generated when the last one
    /// stopped become `aborted`. Gives their number.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn recover(&self) -> Result<u64, JournalError> {
        self.write(|tx| {
            let cut = tx.execute(
                "UPDATE turns SET state = 'aborted', judging = 'skipped', reason = ?1
                 WHERE state = 'generating'",
                [SERVER_STOPPED],
            )?;
            together::all_ended(tx)?;
            Ok(u64::try_from(cut).unwrap_or(u64::MAX))
        })
    }

    /// Ends a session. Its turns that nothing followed are skipped with [`NO_NEXT_STATE`], and so will be
    /// those still being generated; feedback, or a next state if the client comes back, opens them
    /// again. Ending an ended session changes nothing.
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

    /// Open sessions in which nothing was received or completed since `before_ms` and nothing is being
    /// generated; longest idle first.
    ///
    /// # Errors
    /// The faults of the database.
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

    /// Records what a user said of a turn, and makes it ready for judging, also when it was judged
    /// before. Gives the number of the feedback. For a turn that was aborted or failed it is kept,
    /// and never judged.
    ///
    /// # Errors
    /// [`JournalError::UnknownTurn`]; [`JournalError::Invalid`] when the score is not in −1…1 or there
    /// is neither score nor text.
    pub fn add_feedback(&self, feedback: &Feedback) -> Result<i64, JournalError> {
        self.write(|tx| {
            let score = match feedback.score {
                Some(score) if !(-1.0..=1.0).contains(&score) => {
                    return Err(Fault::invalid(format!(
                        "the feedback score is {score}: give one from -1 to 1"
                    )));
                }
                Some(score) => Some(finite(score, "the feedback score")?),
                None if feedback
                    .text
                    .as_deref()
                    .is_none_or(|text| text.trim().is_empty()) =>
                {
                    return Err(Fault::invalid("feedback needs a score or a text"));
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
            refresh(tx, feedback.turn)?;
            Ok(id)
        })
    }
}

/// Makes a complete turn ready if it has evidence that no judgement has seen.
pub(crate) fn refresh(tx: &Transaction<'_>, turn: TurnId) -> Result<(), Fault> {
    tx.prepare_cached(
        "UPDATE turns SET judging = 'ready', reason = NULL
         WHERE id = ?1 AND state = 'complete' AND judging <> 'ready'
         AND ((next_judged = 0 AND EXISTS (SELECT 1 FROM next_states WHERE turn = ?1))
              OR EXISTS (SELECT 1 FROM feedback WHERE turn = ?1 AND judged = 0))",
    )?
    .execute([turn.0])?;
    Ok(())
}

/// How far a turn's reply and its judging have come.
pub(crate) fn require_turn(
    tx: &Transaction<'_>,
    turn: TurnId,
) -> Result<(TurnState, JudgingState), Fault> {
    tx.prepare_cached("SELECT state, judging FROM turns WHERE id = ?1")?
        .query_row([turn.0], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or_else(|| JournalError::UnknownTurn { turn }.into())
}

pub(crate) fn require_session(tx: &Transaction<'_>, session: &SessionId) -> Result<(), Fault> {
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

/// The one way out of `generating`. Anything but a complete reply is never judged.
fn leave_generating(
    tx: &Transaction<'_>,
    turn: TurnId,
    to: TurnState,
    reason: Option<&str>,
) -> Result<(), Fault> {
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

fn insert_reply(tx: &Transaction<'_>, turn: TurnId, reply: &Completion) -> Result<(), Fault> {
    let tokens = reply.token_ids.len();
    let (sampled, full) = (reply.logprobs.len(), reply.full_logprobs.len());
    if tokens != sampled || tokens != full {
        return Err(Fault::invalid(format!(
            "turn {turn} has {tokens} tokens but {sampled} log-probs and {full} full log-probs: \
             there must be one of each per token"
        )));
    }
    let ascending = reply.forced.is_sorted_by(|one, next| one < next);
    let last = reply.forced.last().copied().map_or(0, |last| last as usize);
    if !ascending || !reply.forced.is_empty() && last >= tokens {
        return Err(Fault::invalid(format!(
            "the forced tokens of turn {turn} are no ascending places among its {tokens} tokens"
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
