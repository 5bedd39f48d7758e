//! The choices of one request, which can be judged together.
//!
//! A request of which several choices came is open until one of its choices has been judged, and then it is judged
//! either choice by choice or all of it together, never both: who trains on the one must not train on the other. The
//! journal keeps to that whoever asks. A request of which fewer than two choices came whole is judged choice by choice.

use rusqlite::{Connection, Transaction};

use crate::collecting::{refresh, require_turn};
use crate::error::{Fault, JournalError};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::journal::Journal;
use crate::judging::{AFTER_READY, record, refusal, see};
use crate::records::{JudgingState, NewJudgement, TurnRecord, TurnSeen, TurnState};
use crate::retracting::is_outdated;
use crate::rows;

/// Choices of request `c.request` that are still being generated.
const GROWING: &str =
    "EXISTS (SELECT 1 FROM turns g WHERE g.request = c.request AND g.state = 'generating')";

impl Journal {
    /// Requests whose choices wait to be judged together: all of them have ended, at least two are whole, and none was
    /// judged; nor does the turn before them wait to be judged. Each is its whole choices in order; the oldest request
    /// first. Taking them changes nothing.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn ready_together(&self, limit: u32) -> Result<Vec<Vec<TurnRecord>>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!(
                "SELECT c.request FROM choices c WHERE c.judged = 'not' AND NOT {GROWING}
                    AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.request = c.request AND {AFTER_READY})
                 ORDER BY c.request LIMIT ?1"
            ))?;
            let requests: Vec<i64> = statement
                .query_map([limit], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let choices = requests.into_iter().map(|request| whole(conn, request));
            choices.collect()
        })
    }

    /// As [`Journal::ready_for_judging`], without turns whose request is open for being judged together or may still
    /// become so.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn ready_apart(&self, limit: u32) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                &format!(
                    "WHERE t.judging = 'ready' AND NOT {AFTER_READY} AND NOT EXISTS
                        (SELECT 1 FROM choices c WHERE c.request = t.request AND c.judged = 'not')
                     ORDER BY t.id LIMIT ?1"
                ),
                [limit],
            )
        })
    }

    /// The whole choices of the request that a turn answers, itself among them, in order. Fewer than two where it
    /// cannot be judged together with others.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn choices_of(&self, turn: TurnId) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                "WHERE t.request = (SELECT o.request FROM turns o WHERE o.id = ?1)
                    AND t.state = 'complete' AND t.kind <> 'side' ORDER BY t.choice, t.id",
                [turn.0],
            )
        })
    }

    /// Whether a session has a request that is open for being judged together.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn awaits_judging_together(&self, session: &SessionId) -> Result<bool, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT 1 FROM choices c JOIN requests r ON r.id = c.request
                 WHERE c.judged = 'not' AND r.session = ?1",
            )?;
            Ok(statement.exists([session.as_str()])?)
        })
    }

    /// Records what was thought of all whole choices of a request, in one transaction. Gives the id of each sample, in
    /// the order of the choices.
    ///
    /// Choices need neither a next state nor feedback for it; what of it was there counts as seen. What comes later
    /// makes a choice ready again, as any turn. The receipts of a call about all of them belong to the first.
    ///
    /// # Errors
    /// [`JournalError::AlreadyJudged`] when one of the choices was judged before, [`JournalError::NotReady`] when one is
    /// not whole, [`JournalError::UnknownTurn`], and [`JournalError::Invalid`] when these are not the whole choices of
    /// one request, beside what [`Journal::commit`] refuses.
    pub fn commit_together(
        &self,
        choices: &[NewJudgement<'_>],
    ) -> Result<Vec<Option<SampleId>>, JournalError> {
        self.write(|tx| {
            let first = choices
                .first()
                .ok_or_else(|| Fault::invalid("a judgement of no choices"))?;
            let request = request_of(tx, first.turn.turn)?;
            let whole: Vec<TurnId> = turns_of(tx, request)?;
            let mut given: Vec<TurnId> = choices.iter().map(|choice| choice.turn.turn).collect();
            given.sort_unstable();
            for turn in &given {
                let (state, judging) = require_turn(tx, *turn)?;
                if state != TurnState::Complete {
                    return Err(JournalError::NotReady { turn: *turn, state }.into());
                }
                if !is_open(tx, request)? {
                    return Err(refusal(*turn, state, judged(judging)).into());
                }
            }
            for TurnSeen { turn, evidence } in choices.iter().map(|choice| choice.turn) {
                if is_outdated(tx, turn, evidence)? {
                    let (state, judging) = require_turn(tx, turn)?;
                    return Err(refusal(turn, state, judged(judging)).into());
                }
            }
            if given != whole || given.len() < 2 {
                return Err(Fault::invalid(format!(
                    "turns {given:?} were judged together, but the whole choices of their request are {whole:?}"
                )));
            }
            let mut samples = Vec::with_capacity(choices.len());
            for choice in choices {
                see(tx, choice.turn.turn, choice.turn.evidence)?;
                samples.push(record(tx, choice, true)?);
                refresh(tx, choice.turn.turn)?;
            }
            close(tx, request, "together")?;
            Ok(samples)
        })
    }
}

/// A choice whose request is no longer open was judged, whatever has come since.
fn judged(judging: JudgingState) -> JudgingState {
    match judging {
        JudgingState::Waiting | JudgingState::Ready => JudgingState::Done,
        other => other,
    }
}

fn whole(conn: &Connection, request: i64) -> Result<Vec<TurnRecord>, Fault> {
    rows::turns(
        conn,
        "WHERE t.request = ?1 AND t.state = 'complete' ORDER BY t.choice, t.id",
        [request],
    )
}

fn turns_of(tx: &Transaction<'_>, request: i64) -> Result<Vec<TurnId>, Fault> {
    let mut statement = tx.prepare_cached(
        "SELECT id FROM turns WHERE request = ?1 AND state = 'complete' ORDER BY id",
    )?;
    let turns = statement.query_map([request], |row| Ok(TurnId(row.get(0)?)))?;
    Ok(turns.collect::<Result<_, _>>()?)
}

fn request_of(tx: &Transaction<'_>, turn: TurnId) -> Result<i64, Fault> {
    require_turn(tx, turn)?;
    Ok(tx
        .prepare_cached("SELECT request FROM turns WHERE id = ?1")?
        .query_row([turn.0], |row| row.get(0))?)
}

fn is_open(tx: &Transaction<'_>, request: i64) -> Result<bool, Fault> {
    let mut statement =
        tx.prepare_cached("SELECT 1 FROM choices WHERE request = ?1 AND judged = 'not'")?;
    Ok(statement.exists([request])?)
}

/// Notes that a request has several choices.
pub(crate) fn open(tx: &Transaction<'_>, request: i64) -> Result<(), Fault> {
    tx.prepare_cached("INSERT OR IGNORE INTO choices (request, judged) VALUES (?1, 'not')")?
        .execute([request])?;
    Ok(())
}

fn close(tx: &Transaction<'_>, request: i64, how: &str) -> Result<(), Fault> {
    tx.prepare_cached("UPDATE choices SET judged = ?2 WHERE request = ?1 AND judged = 'not'")?
        .execute((request, how))?;
    Ok(())
}

/// A turn was judged by itself: so are the other choices of its request from now on.
pub(crate) fn close_apart(tx: &Transaction<'_>, turn: TurnId) -> Result<(), Fault> {
    tx.prepare_cached(
        "UPDATE choices SET judged = 'apart'
         WHERE judged = 'not' AND request = (SELECT request FROM turns WHERE id = ?1)",
    )?
    .execute([turn.0])?;
    Ok(())
}

/// A turn has ended: a request that has fewer than two whole choices then is judged choice by choice.
pub(crate) fn ended(tx: &Transaction<'_>, turn: TurnId) -> Result<(), Fault> {
    tx.prepare_cached(&format!(
        "UPDATE choices AS c SET judged = 'apart'
         WHERE c.judged = 'not' AND c.request = (SELECT request FROM turns WHERE id = ?1)
            AND NOT {GROWING} AND {FEWER}"
    ))?
    .execute([turn.0])?;
    Ok(())
}

/// Fewer than two choices of request `c.request` are whole.
const FEWER: &str =
    "(SELECT COUNT(*) FROM turns w WHERE w.request = c.request AND w.state = 'complete') < 2";

/// The same for every request, when all that was being generated has been cut off.
pub(crate) fn all_ended(tx: &Transaction<'_>) -> Result<(), Fault> {
    tx.execute(
        &format!("UPDATE choices AS c SET judged = 'apart' WHERE c.judged = 'not' AND {FEWER}"),
        [],
    )?;
    Ok(())
}
