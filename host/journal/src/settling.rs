//! What an ended session contributes as a whole, decided once.
//!
//! A session in which every judged turn was neutral has taught nothing, however long it was. When it is over, one of its
//! turns may give a sample after all; which one is for judging to say. It is decided once for each time that the
//! session ends: the mark and the sample are one transaction, and a client that comes back takes the mark off again.

use rusqlite::Transaction;

use crate::clock::now_ms;
use crate::codec::Floats;
use crate::collecting::require_session;
use crate::error::{Fault, JournalError};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::journal::Journal;
use crate::judging::insert_sample;
use crate::records::{JudgingState, NewSample};

/// No turn of session `s` is being generated or waits to be judged.
const AT_REST: &str = "NOT EXISTS (SELECT 1 FROM turns t WHERE t.session = s.id
    AND (t.state = 'generating' OR t.judging = 'ready'))";

/// Somebody said of turn `t` that it is neutral: a judge by a vote, or the user by a score of 0. A reward of 0 without a
/// vote is no opinion; verdicts of that kind are in journals from before judges could abstain.
const NEUTRAL_VOTE: &str = "EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = t.id AND v.reward = 0
    AND (v.source = 'user' OR v.votes <> '[]'))";

/// Session `?1` gave no sample, and no turn of it that was skipped for another reason than `?2` has a
/// verdict other than 0.
const ALL_NEUTRAL: &str =
    "NOT EXISTS (SELECT 1 FROM turns t JOIN samples s ON s.turn = t.id WHERE t.session = ?1)
    AND NOT EXISTS (SELECT 1 FROM turns t JOIN verdicts v ON v.turn = t.id
        WHERE t.session = ?1 AND t.reason IS NOT ?2 AND v.reward <> 0)";

impl Journal {
    /// Ended sessions for which [`Journal::settle_session`] is due: nothing of them is being generated or
    /// waits to be judged. Longest ended first.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn sessions_to_settle(&self, limit: u32) -> Result<Vec<SessionId>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!(
                "SELECT s.id FROM sessions s
                 WHERE s.ended_ms IS NOT NULL AND s.settled_ms IS NULL AND {AT_REST}
                 ORDER BY s.ended_ms LIMIT ?1"
            ))?;
            let ids = statement.query_map([limit], |row| Ok(SessionId(row.get(0)?)))?;
            Ok(ids.collect::<Result<_, _>>()?)
        })
    }

    /// The turns of a session that were skipped because their verdict was `neutral`, in order, each with
    /// the full log-probs of its reply: only those that a judge voted neutral on or the user scored 0. None when the
    /// session gave a sample, or when a turn of it has a verdict that is not neutral.
    ///
    /// # Errors
    /// The faults of the database.
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

    /// Settles an ended session in one transaction, with the sample of one of its
    /// [`neutral_turns`](Journal::neutral_turns) or without. Gives the sample's id.
    ///
    /// What was true when the sample was made is looked at once more: of a session that went on meanwhile, or is
    /// settled already, nothing is written; one that has a sample or a verdict that is not neutral by now is settled
    /// without this one.
    ///
    /// # Errors
    /// [`JournalError::UnknownSession`], and [`JournalError::Invalid`] for a sample of another session, a
    /// reward that is not finite, or no reward where there is no hint either.
    pub fn settle_session(
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
                     WHERE s.id = ?1 AND s.ended_ms IS NOT NULL AND s.settled_ms IS NULL AND {AT_REST}"
                ))?
                .execute((session.as_str(), now_ms()))?;
            let Some(sample) = sample.filter(|_| settled == 1) else {
                return Ok(None);
            };
            if !is_of(tx, sample.turn, session)? {
                return Err(Fault::invalid(format!(
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

fn is_of(tx: &Transaction<'_>, turn: TurnId, session: &SessionId) -> Result<bool, Fault> {
    let found = tx
        .prepare_cached("SELECT 1 FROM turns WHERE id = ?1 AND session = ?2")?
        .exists((turn.0, session.as_str()))?;
    Ok(found)
}
