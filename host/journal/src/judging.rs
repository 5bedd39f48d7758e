//! Taking turns to judge and recording what was thought of them.

use rusqlite::Transaction;
use serde_json::Value;

use crate::clock::now_ms;
use crate::codec::{encode_json, finite};
use crate::collecting::{refresh, require_turn};
use crate::error::{Fault, JournalError};
use crate::hinting::{insert_hint, is_hinted};
use crate::ids::{SampleId, TurnId};
use crate::journal::Journal;
use crate::receipts::insert_receipts;
use crate::records::{
    Evidence, JudgementOutcome, JudgingState, NewJudgement, NewSample, NewVerdict, TurnRecord,
    TurnSeen, TurnState, VerdictOutcome,
};
use crate::retracting::is_outdated;
use crate::rows;
use crate::together::close_apart;

/// The turn before turn `t` waits to be judged itself. What it is worth decides what `t` is compared with, so it is
/// judged first.
pub(crate) const AFTER_READY: &str =
    "EXISTS (SELECT 1 FROM turns before WHERE before.id = t.parent AND before.judging = 'ready')";

/// Why a queued sample was dropped when its turn was judged again.
pub const REPLACED: &str = "replaced by a later judgement";

impl Journal {
    /// Complete turns with a next state or feedback that no judgement has seen, oldest first; a turn comes once the one
    /// before it in its conversation is judged. Taking them changes nothing: they stay ready until
    /// [`Journal::commit_judgement`].
    ///
    /// # Errors
    /// The faults of the database.
    pub fn ready_for_judging(&self, limit: u32) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                &format!("WHERE t.judging = 'ready' AND NOT {AFTER_READY} ORDER BY t.id LIMIT ?1"),
                [limit],
            )
        })
    }

    /// Records a judgement in one transaction: verdicts, receipts, and either the sample (`done`), or
    /// why there is none (`skipped`), or neither (`done`, nothing to train). Gives the sample's id.
    ///
    /// # Errors
    /// As [`Journal::commit`], and [`JournalError::Invalid`] for a sample together with a reason to skip.
    pub fn commit_judgement(
        &self,
        turn: impl Into<TurnSeen>,
        verdicts: &[NewVerdict],
        sample: Option<&NewSample>,
        skipped: Option<&str>,
        receipts: &[Value],
    ) -> Result<Option<SampleId>, JournalError> {
        let turn = turn.into();
        let outcome = match (sample, skipped) {
            (Some(_), Some(_)) => {
                return Err(JournalError::Invalid(format!(
                    "turn {} cannot both give a sample and be skipped",
                    turn.turn
                )));
            }
            (Some(sample), None) => JudgementOutcome::Sample(sample),
            (None, Some(reason)) => JudgementOutcome::Skipped(reason),
            (None, None) => JudgementOutcome::Nothing,
        };
        self.commit(&NewJudgement {
            turn,
            verdicts,
            hints: &[],
            receipts,
            outcome,
        })
    }

    /// Records a judgement of one turn, in one transaction. Gives the sample's id.
    ///
    /// Hand in the [`TurnRecord`] that the judges saw: evidence that arrived since then keeps the turn
    /// ready. With a bare [`TurnId`] everything recorded until now counts as seen. When a turn is judged
    /// again, its earlier sample is dropped if it is still queued ([`REPLACED`]); one that was trained
    /// stays, and the new one is about the new evidence.
    ///
    /// # Errors
    /// [`JournalError::AlreadyJudged`] when an earlier judgement saw all the evidence, or when the next state that this
    /// one saw was retracted meanwhile,
    /// [`JournalError::NotReady`] when there is none, [`JournalError::UnknownTurn`], and
    /// [`JournalError::Invalid`] for numbers that are not finite, a sample of another turn, or one that has
    /// neither a reward nor a hint.
    pub fn commit(&self, judgement: &NewJudgement<'_>) -> Result<Option<SampleId>, JournalError> {
        let TurnSeen { turn, evidence } = judgement.turn;
        self.write(|tx| {
            let (state, judging) = require_turn(tx, turn)?;
            let fresh = !is_outdated(tx, turn, evidence)? && see(tx, turn, evidence)?;
            if judging != JudgingState::Ready || !fresh {
                return Err(refusal(turn, state, judging).into());
            }
            let sample = record(tx, judgement, false)?;
            close_apart(tx, turn)?;
            refresh(tx, turn)?;
            Ok(sample)
        })
    }
}

/// Writes a judgement and moves its turn on.
pub(crate) fn record(
    tx: &Transaction<'_>,
    new: &NewJudgement<'_>,
    together: bool,
) -> Result<Option<SampleId>, Fault> {
    let TurnSeen { turn, evidence } = new.turn;
    let judgement = insert_judgement(tx, turn, evidence, together)?;
    for verdict in new.verdicts {
        insert_verdict(tx, turn, judgement, verdict)?;
    }
    for hint in new.hints {
        insert_hint(tx, turn, judgement, hint)?;
    }
    insert_receipts(tx, Some(turn), new.receipts)?;
    let (judging, reason) = match new.outcome {
        JudgementOutcome::Sample(sample) if sample.turn != turn => {
            return Err(Fault::invalid(format!(
                "the sample is of another turn than {turn}"
            )));
        }
        JudgementOutcome::Sample(_) | JudgementOutcome::Nothing => (JudgingState::Done, None),
        JudgementOutcome::Skipped(reason) => (JudgingState::Skipped, Some(reason)),
        JudgementOutcome::AsBefore(_) if has_sample(tx, turn)? => (JudgingState::Done, None),
        JudgementOutcome::AsBefore(Some(reason)) => (JudgingState::Skipped, Some(reason)),
        JudgementOutcome::AsBefore(None) => (JudgingState::Done, None),
    };
    let mut sample = None;
    if !matches!(new.outcome, JudgementOutcome::AsBefore(_)) {
        tx.prepare_cached(
            "UPDATE samples SET state = 'dropped', reason = ?2
             WHERE turn = ?1 AND state = 'queued'",
        )?
        .execute((turn.0, REPLACED))?;
        if let JudgementOutcome::Sample(new) = new.outcome {
            sample = Some(insert_sample(tx, new)?);
        }
    }
    tx.prepare_cached("UPDATE turns SET judging = ?2, reason = ?3 WHERE id = ?1")?
        .execute((turn.0, judging, reason))?;
    Ok(sample)
}

fn has_sample(tx: &Transaction<'_>, turn: TurnId) -> Result<bool, Fault> {
    let mut statement = tx.prepare_cached("SELECT 1 FROM samples WHERE turn = ?1")?;
    Ok(statement.exists([turn.0])?)
}

/// Marks the evidence as judged; false when all of it was before.
pub(crate) fn see(
    tx: &Transaction<'_>,
    turn: TurnId,
    evidence: Option<Evidence>,
) -> Result<bool, Fault> {
    let (next_state, feedback) = match evidence {
        Some(seen) => (
            seen.next_state,
            i64::try_from(seen.feedback).unwrap_or(i64::MAX),
        ),
        None => (true, i64::MAX),
    };
    let mut fresh = 0;
    if next_state {
        fresh += tx
            .prepare_cached(
                "UPDATE turns SET next_judged = 1 WHERE id = ?1 AND next_judged = 0
                 AND EXISTS (SELECT 1 FROM next_states WHERE turn = ?1)",
            )?
            .execute([turn.0])?;
    }
    fresh += tx
        .prepare_cached(
            "UPDATE feedback SET judged = 1 WHERE judged = 0 AND id IN
                (SELECT id FROM feedback WHERE turn = ?1 ORDER BY id LIMIT ?2)",
        )?
        .execute((turn.0, feedback))?;
    Ok(fresh > 0)
}

pub(crate) fn refusal(turn: TurnId, state: TurnState, judging: JudgingState) -> JournalError {
    match (state, judging) {
        (TurnState::Complete, JudgingState::Waiting) | (TurnState::Generating, _) => {
            JournalError::NotReady { turn, state }
        }
        (TurnState::Aborted | TurnState::Failed, _) => JournalError::NotReady { turn, state },
        _ => JournalError::AlreadyJudged { turn, judging },
    }
}

/// What the judgement was based on. A bare turn means all that is there.
fn insert_judgement(
    tx: &Transaction<'_>,
    turn: TurnId,
    evidence: Option<Evidence>,
    together: bool,
) -> Result<i64, Fault> {
    let (next_state, feedback) = match evidence {
        Some(seen) => (
            Some(seen.next_state),
            Some(i64::try_from(seen.feedback).unwrap_or(i64::MAX)),
        ),
        None => (None, None),
    };
    let id = tx
        .prepare_cached(
            "INSERT INTO judgements (turn, next_state, feedback, together) VALUES (?1,
                COALESCE(?2, EXISTS (SELECT 1 FROM next_states WHERE turn = ?1)),
                COALESCE(?3, (SELECT COUNT(*) FROM feedback WHERE turn = ?1)), ?4)",
        )?
        .insert((turn.0, next_state, feedback, together))?;
    Ok(id)
}

fn insert_verdict(
    tx: &Transaction<'_>,
    turn: TurnId,
    judgement: i64,
    verdict: &NewVerdict,
) -> Result<(), Fault> {
    let (reward, accept, reason) = match &verdict.outcome {
        VerdictOutcome::Verdict { reward, accept } => {
            (Some(finite(*reward, "the reward")?), Some(*accept), None)
        }
        VerdictOutcome::None { reason } => (None, None, Some(reason)),
    };
    tx.prepare_cached(
        "INSERT INTO verdicts (turn, source, digest, reward, accept, reason, votes, rationale, metrics, ms,
            judgement)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute((
        turn.0,
        &verdict.source,
        verdict.digest.as_deref(),
        reward,
        accept,
        reason,
        encode_json(&verdict.votes)?,
        &verdict.rationale,
        encode_json(&verdict.metrics)?,
        verdict.ms,
        judgement,
    ))?;
    Ok(())
}

pub(crate) fn insert_sample(tx: &Transaction<'_>, sample: &NewSample) -> Result<SampleId, Fault> {
    let reward = match sample.reward {
        Some(reward) => Some(finite(reward, "the reward")?),
        None if is_hinted(tx, sample.turn)? => None,
        None => {
            return Err(Fault::invalid(format!(
                "turn {} has neither a reward nor a hint: there is nothing that a sample of it could teach",
                sample.turn
            )));
        }
    };
    let id = tx
        .prepare_cached(
            "INSERT INTO samples (turn, reward, baseline_key, state, created_ms, provenance)
             VALUES (?1, ?2, ?3, 'queued', ?4, ?5)",
        )?
        .insert((
            sample.turn.0,
            reward,
            &sample.baseline_key,
            now_ms(),
            encode_json(&sample.provenance)?,
        ))?;
    Ok(SampleId(id))
}
