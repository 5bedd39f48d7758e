//! Choice groups: the choices (`n > 1`) of one request, which can be judged as a group.
//!
//! A request with several choices is open until one of its choices is judged. From then on it is judged either choice
//! by choice or as a group, never both, so that no reply trains twice. The journal enforces this for every caller. A
//! request with fewer than two complete choices is judged choice by choice.

use rusqlite::{Connection, Transaction};

use crate::error::{DbError, JournalError};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::journal::Journal;
use crate::judgements::{PARENT_READY, mark_evidence_judged, not_judgeable, write_judgement};
use crate::readiness::{require_turn, update_readiness};
use crate::records::{EvidenceSnapshot, JudgingState, NewJudgement, TurnRecord, TurnState};
use crate::retractions::saw_retracted_next_state;
use crate::rows;

/// SQL: a choice of request `c.request` is still being generated.
const STILL_GENERATING: &str =
    "EXISTS (SELECT 1 FROM turns g WHERE g.request = c.request AND g.state = 'generating')";

impl Journal {
    /// Requests whose choices are ready to be judged as a group: all choices have ended, at least two are complete,
    /// none was judged, and the parent turn does not wait to be judged. Each entry is the complete choices of one
    /// request in order, oldest request first. Reading them changes nothing.
    ///
    /// # Errors
    /// Database errors.
    pub fn ready_choice_groups(&self, limit: u32) -> Result<Vec<Vec<TurnRecord>>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!(
                "SELECT c.request FROM choices c WHERE c.judged = 'not' AND NOT {STILL_GENERATING}
                    AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.request = c.request AND {PARENT_READY})
                 ORDER BY c.request LIMIT ?1"
            ))?;
            let requests: Vec<i64> = statement
                .query_map([limit], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let choices = requests.into_iter().map(|request| complete_turns(conn, request));
            choices.collect()
        })
    }

    /// As [`Journal::ready_for_judging`], without turns whose request is, or may still become, an open choice group.
    ///
    /// # Errors
    /// Database errors.
    pub fn ready_single_turns(&self, limit: u32) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                &format!(
                    "WHERE t.judging = 'ready' AND NOT {PARENT_READY} AND NOT EXISTS
                        (SELECT 1 FROM choices c WHERE c.request = t.request AND c.judged = 'not')
                     ORDER BY t.id LIMIT ?1"
                ),
                [limit],
            )
        })
    }

    /// The complete choices of the request that a turn answers, including the turn itself, in order. Fewer than two if
    /// it cannot be judged as a group.
    ///
    /// # Errors
    /// Database errors.
    pub fn complete_choices(&self, turn: TurnId) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                "WHERE t.request = (SELECT o.request FROM turns o WHERE o.id = ?1)
                    AND t.state = 'complete' AND t.kind <> 'side' ORDER BY t.choice, t.id",
                [turn.0],
            )
        })
    }

    /// Whether a session has a request whose choices may still be judged as a group.
    ///
    /// # Errors
    /// Database errors.
    pub fn has_open_choice_group(&self, session: &SessionId) -> Result<bool, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT 1 FROM choices c JOIN requests r ON r.id = c.request
                 WHERE c.judged = 'not' AND r.session = ?1",
            )?;
            Ok(statement.exists([session.as_str()])?)
        })
    }

    /// Records the judgements of all complete choices of a request in one transaction. Returns the sample ids in the
    /// order of the choices.
    ///
    /// Choices need neither a next state nor feedback; evidence that exists counts as seen. Later evidence makes a
    /// choice ready again, as for any turn. Receipts of calls about the whole group belong to the first choice.
    ///
    /// # Errors
    /// [`JournalError::AlreadyJudged`] when one of the choices was judged before, [`JournalError::NotReady`] when one is
    /// not complete, [`JournalError::UnknownTurn`], [`JournalError::Invalid`] when these are not the complete choices
    /// of one request, and the errors of [`Journal::commit`].
    pub fn commit_choice_group(
        &self,
        choices: &[NewJudgement<'_>],
    ) -> Result<Vec<Option<SampleId>>, JournalError> {
        self.write(|tx| {
            let first = choices
                .first()
                .ok_or_else(|| DbError::invalid("a group judgement needs at least one choice"))?;
            let request = request_of_turn(tx, first.turn.turn)?;
            let complete: Vec<TurnId> = complete_turn_ids(tx, request)?;
            let mut given: Vec<TurnId> = choices.iter().map(|choice| choice.turn.turn).collect();
            given.sort_unstable();
            for turn in &given {
                let (state, judging) = require_turn(tx, *turn)?;
                if state != TurnState::Complete {
                    return Err(JournalError::NotReady { turn: *turn, state }.into());
                }
                if !is_group_open(tx, request)? {
                    return Err(not_judgeable(*turn, state, closed_state(judging)).into());
                }
            }
            for EvidenceSnapshot { turn, evidence } in choices.iter().map(|choice| choice.turn) {
                if saw_retracted_next_state(tx, turn, evidence)? {
                    let (state, judging) = require_turn(tx, turn)?;
                    return Err(not_judgeable(turn, state, closed_state(judging)).into());
                }
            }
            if given != complete || given.len() < 2 {
                return Err(DbError::invalid(format!(
                    "turns {given:?} were judged as a group, but the complete choices of their request are {complete:?}"
                )));
            }
            let mut samples = Vec::with_capacity(choices.len());
            for choice in choices {
                mark_evidence_judged(tx, choice.turn.turn, choice.turn.evidence)?;
                samples.push(write_judgement(tx, choice, true)?);
                update_readiness(tx, choice.turn.turn)?;
            }
            close_group(tx, request, "together")?;
            Ok(samples)
        })
    }
}

/// A choice whose group is closed was judged, even if later evidence changed its state.
fn closed_state(judging: JudgingState) -> JudgingState {
    match judging {
        JudgingState::Waiting | JudgingState::Ready => JudgingState::Done,
        other => other,
    }
}

fn complete_turns(conn: &Connection, request: i64) -> Result<Vec<TurnRecord>, DbError> {
    rows::turns(
        conn,
        "WHERE t.request = ?1 AND t.state = 'complete' ORDER BY t.choice, t.id",
        [request],
    )
}

fn complete_turn_ids(tx: &Transaction<'_>, request: i64) -> Result<Vec<TurnId>, DbError> {
    let mut statement = tx.prepare_cached(
        "SELECT id FROM turns WHERE request = ?1 AND state = 'complete' ORDER BY id",
    )?;
    let turns = statement.query_map([request], |row| Ok(TurnId(row.get(0)?)))?;
    Ok(turns.collect::<Result<_, _>>()?)
}

fn request_of_turn(tx: &Transaction<'_>, turn: TurnId) -> Result<i64, DbError> {
    require_turn(tx, turn)?;
    Ok(tx
        .prepare_cached("SELECT request FROM turns WHERE id = ?1")?
        .query_row([turn.0], |row| row.get(0))?)
}

fn is_group_open(tx: &Transaction<'_>, request: i64) -> Result<bool, DbError> {
    let mut statement =
        tx.prepare_cached("SELECT 1 FROM choices WHERE request = ?1 AND judged = 'not'")?;
    Ok(statement.exists([request])?)
}

/// Records that a request has several choices.
pub(crate) fn open_group(tx: &Transaction<'_>, request: i64) -> Result<(), DbError> {
    tx.prepare_cached("INSERT OR IGNORE INTO choices (request, judged) VALUES (?1, 'not')")?
        .execute([request])?;
    Ok(())
}

fn close_group(tx: &Transaction<'_>, request: i64, how: &str) -> Result<(), DbError> {
    tx.prepare_cached("UPDATE choices SET judged = ?2 WHERE request = ?1 AND judged = 'not'")?
        .execute((request, how))?;
    Ok(())
}

/// Called when a turn ends: a request with fewer than two complete choices is judged choice by choice.
pub(crate) fn close_incomplete_group(tx: &Transaction<'_>, turn: TurnId) -> Result<(), DbError> {
    tx.prepare_cached(&format!(
        "UPDATE choices AS c SET judged = 'apart'
         WHERE c.judged = 'not' AND c.request = (SELECT request FROM turns WHERE id = ?1)
            AND NOT {STILL_GENERATING} AND {TOO_FEW_CHOICES}"
    ))?
    .execute([turn.0])?;
    Ok(())
}

/// SQL: fewer than two choices of request `c.request` are complete.
const TOO_FEW_CHOICES: &str =
    "(SELECT COUNT(*) FROM turns w WHERE w.request = c.request AND w.state = 'complete') < 2";

/// Does [`close_incomplete_group`] for every request, after all running turns were aborted.
pub(crate) fn close_all_incomplete_groups(tx: &Transaction<'_>) -> Result<(), DbError> {
    tx.execute(
        &format!(
            "UPDATE choices AS c SET judged = 'apart' WHERE c.judged = 'not' AND {TOO_FEW_CHOICES}"
        ),
        [],
    )?;
    Ok(())
}
