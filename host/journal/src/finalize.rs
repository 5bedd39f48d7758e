//! Finalization of ended sessions.
//!
//! A session whose judged turns were all neutral has produced no sample. When it ends, one of its turns may still
//! become a sample; the judging loop chooses which. Finalization happens once per end of the session: setting
//! `settled_ms` and inserting the sample are one transaction, and a client that returns clears `settled_ms`.

use rusqlite::Transaction;

use crate::clock::now_ms;
use crate::codec::Floats;
use crate::error::{DbError, JournalError};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::journal::Journal;
use crate::judgements::insert_sample;
use crate::readiness::require_session;
use crate::records::{JudgingState, NewSample};

/// SQL: no turn of session `s` is being generated or waits to be judged.
const NOTHING_PENDING: &str = "NOT EXISTS (SELECT 1 FROM turns t WHERE t.session = s.id
    AND (t.state = 'generating' OR t.judging = 'ready'))";

/// SQL: turn `t` has an explicit neutral verdict, from a judge's vote or from a user score of 0. A reward of 0 without
/// a vote is an abstention; journals written before judges could abstain contain such verdicts.
const NEUTRAL_VOTE: &str = "EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = t.id AND v.reward = 0
    AND (v.source = 'user' OR v.votes <> '[]'))";

/// SQL: session `?1` has no sample, and none of its turns, except those skipped for reason `?2`, has a non-zero verdict.
const ALL_NEUTRAL: &str =
    "NOT EXISTS (SELECT 1 FROM turns t JOIN samples s ON s.turn = t.id WHERE t.session = ?1)
    AND NOT EXISTS (SELECT 1 FROM turns t JOIN verdicts v ON v.turn = t.id
        WHERE t.session = ?1 AND t.reason IS NOT ?2 AND v.reward <> 0)";

impl Journal {
    /// Ended sessions that are ready for [`Journal::finalize_session`]: no turn is being generated or waits to be
    /// judged. Ordered by end time, earliest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn sessions_to_finalize(&self, limit: u32) -> Result<Vec<SessionId>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!(
                "SELECT s.id FROM sessions s
                 WHERE s.ended_ms IS NOT NULL AND s.settled_ms IS NULL AND {NOTHING_PENDING}
                 ORDER BY s.ended_ms LIMIT ?1"
            ))?;
            let ids = statement.query_map([limit], |row| Ok(SessionId(row.get(0)?)))?;
            Ok(ids.collect::<Result<_, _>>()?)
        })
    }

    /// The turns of a session that were skipped with the reason `neutral` and that a judge voted neutral on or the user
    /// scored 0, in order, each with the full logprobs of its reply. Empty when the session has a sample or a verdict
    /// that is not neutral.
    ///
    /// # Errors
    /// Database errors.
    pub fn neutral_turns(
        &self,
        session: &SessionId,
        neutral: &str,
    ) -> Result<Vec<(TurnId, Vec<f32>)>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!(
                "SELECT t.id, p.full_logprobs FROM turns t JOIN replies p ON p.turn = t.id
                 WHERE t.session = ?1 AND t.judging = 'skipped' AND t.reason = ?2
                    AND {NEUTRAL_VOTE} AND {ALL_NEUTRAL}
                 ORDER BY t.seq"
            ))?;
            let turns = statement.query_map((session.as_str(), neutral), |row| {
                let Floats(logprobs) = row.get(1)?;
                Ok((TurnId(row.get(0)?), logprobs))
            })?;
            Ok(turns.collect::<Result<_, _>>()?)
        })
    }

    /// Finalizes an ended session in one transaction, with or without a sample of one of its
    /// [`neutral_turns`](Journal::neutral_turns). Returns the sample's id.
    ///
    /// The preconditions are checked again: if the session was resumed or finalized in the meantime, nothing is
    /// written; if it now has a sample or a verdict that is not neutral, it is finalized without this sample.
    ///
    /// # Errors
    /// [`JournalError::UnknownSession`], and [`JournalError::Invalid`] for a sample of another session, a
    /// reward that is not finite, or a sample with neither reward nor hint.
    pub fn finalize_session(
        &self,
        session: &SessionId,
        neutral: &str,
        sample: Option<&NewSample>,
    ) -> Result<Option<SampleId>, JournalError> {
        self.write(|tx| {
            require_session(tx, session)?;
            let settled = tx
                .prepare_cached(&format!(
                    "UPDATE sessions AS s SET settled_ms = ?2
                     WHERE s.id = ?1 AND s.ended_ms IS NOT NULL AND s.settled_ms IS NULL AND {NOTHING_PENDING}"
                ))?
                .execute((session.as_str(), now_ms()))?;
            let Some(sample) = sample.filter(|_| settled == 1) else {
                return Ok(None);
            };
            if !is_turn_in_session(tx, sample.turn, session)? {
                return Err(DbError::invalid(format!(
                    "the sample is of turn {}, which is not in session {session}",
                    sample.turn
                )));
            }
            let taken = tx
                .prepare_cached(&format!(
                    "UPDATE turns AS t SET judging = ?4, reason = NULL
                     WHERE id = ?3 AND session = ?1 AND judging = 'skipped' AND reason = ?2
                     AND {NEUTRAL_VOTE} AND {ALL_NEUTRAL}"
                ))?
                .execute((session.as_str(), neutral, sample.turn.0, JudgingState::Done))?;
            (taken == 1).then(|| insert_sample(tx, sample)).transpose()
        })
    }
}

fn is_turn_in_session(
    tx: &Transaction<'_>,
    turn: TurnId,
    session: &SessionId,
) -> Result<bool, DbError> {
    let found = tx
        .prepare_cached("SELECT 1 FROM turns WHERE id = ?1 AND session = ?2")?
        .exists((turn.0, session.as_str()))?;
    Ok(found)
}
