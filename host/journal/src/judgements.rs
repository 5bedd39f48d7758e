//! Reads of turns that are ready for judging, and commits of judgements.

use rusqlite::Transaction;
use serde_json::Value;

use crate::clock::now_ms;
use crate::codec::{encode_json, finite};
use crate::error::{DbError, JournalError};
use crate::experience;
use crate::hints::{has_hint, insert_hint};
use crate::ids::{SampleId, TurnId};
use crate::journal::Journal;
use crate::readiness::{require_turn, update_readiness};
use crate::receipts::insert_receipts;
use crate::records::{
    Evidence, EvidenceSnapshot, JudgementOutcome, JudgingState, NewExperience, NewJudgement,
    NewSample, TurnRecord, TurnState, VerdictOutcome, VerdictRecord,
};
use crate::retractions::saw_retracted_next_state;
use crate::rows;

/// SQL: the parent of turn `t` waits to be judged. Its reward enters the baseline of `t`, so it is judged first.
pub(crate) const PARENT_READY: &str =
    "EXISTS (SELECT 1 FROM turns before WHERE before.id = t.parent AND before.judging = 'ready')";

/// Drop reason of a queued sample whose turn was judged again.
pub const REPLACED_BY_LATER_JUDGEMENT: &str = "replaced by a later judgement";

impl Journal {
    /// Complete turns with a next state or feedback that no judgement has seen, oldest first. A turn is listed only
    /// after its parent is judged. Reading them changes nothing: they stay ready until [`Journal::commit_judgement`].
    ///
    /// # Errors
    /// Database errors.
    pub fn ready_for_judging(&self, limit: u32) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                &format!("WHERE t.judging = 'ready' AND NOT {PARENT_READY} ORDER BY t.id LIMIT ?1"),
                [limit],
            )
        })
    }

    /// Records a judgement in one transaction: verdicts, receipts, and either a sample (`done`), or a skip reason
    /// (`skipped`), or neither (`done`, no sample). Returns the sample's id.
    ///
    /// # Errors
    /// As [`Journal::commit`], and [`JournalError::Invalid`] for a sample together with a skip reason.
    pub fn commit_judgement(
        &self,
        turn: impl Into<EvidenceSnapshot>,
        verdicts: &[VerdictRecord],
        sample: Option<&NewSample>,
        skipped: Option<&str>,
        receipts: &[Value],
    ) -> Result<Option<SampleId>, JournalError> {
        let turn = turn.into();
        let outcome = match (sample, skipped) {
            (Some(_), Some(_)) => {
                return Err(JournalError::Invalid(format!(
                    "the judgement of turn {} has both a sample and a skip reason",
                    turn.turn
                )));
            }
            (Some(sample), None) => JudgementOutcome::Sample(sample),
            (None, Some(reason)) => JudgementOutcome::Skipped(reason),
            (None, None) => JudgementOutcome::NoSample,
        };
        self.commit(&NewJudgement {
            turn,
            verdicts,
            hints: &[],
            experience: None,
            receipts,
            outcome,
        })
    }

    /// Records a judgement of one turn in one transaction. Returns the sample's id.
    ///
    /// Pass the [`TurnRecord`] that the judges saw: evidence that arrived since then keeps the turn ready. With a bare
    /// [`TurnId`], everything recorded so far counts as seen. When a turn is judged again, its earlier sample is dropped
    /// if it is still queued ([`REPLACED_BY_LATER_JUDGEMENT`]); a trained sample stays, and the new one covers the new
    /// evidence.
    ///
    /// # Errors
    /// [`JournalError::AlreadyJudged`] if an earlier judgement saw all the evidence, or if the next state that this
    /// judgement saw was retracted in the meantime, [`JournalError::NotReady`] if there is no evidence,
    /// [`JournalError::UnknownTurn`], and [`JournalError::Invalid`] for numbers that are not finite, a sample of
    /// another turn, or a sample with neither reward nor hint.
    pub fn commit(&self, judgement: &NewJudgement<'_>) -> Result<Option<SampleId>, JournalError> {
        let EvidenceSnapshot { turn, evidence } = judgement.turn;
        self.write(|tx| {
            let (state, judging) = require_turn(tx, turn)?;
            let fresh = !saw_retracted_next_state(tx, turn, evidence)?
                && mark_evidence_judged(tx, turn, evidence)?;
            if judging != JudgingState::Ready || !fresh {
                return Err(not_judgeable(turn, state, judging).into());
            }
            let sample = write_judgement(tx, judgement, false)?;
            close_choice_group(tx, turn)?;
            update_readiness(tx, turn)?;
            Ok(sample)
        })
    }
}

/// Closes the choice group of a turn that is judged on its own: from now on its other choices are too.
fn close_choice_group(tx: &Transaction<'_>, turn: TurnId) -> Result<(), DbError> {
    tx.prepare_cached(
        "UPDATE choices SET judged = 'apart'
         WHERE judged = 'not' AND request = (SELECT request FROM turns WHERE id = ?1)",
    )?
    .execute([turn.0])?;
    Ok(())
}

/// Inserts a judgement and updates the judging state of its turn.
pub(crate) fn write_judgement(
    tx: &Transaction<'_>,
    new: &NewJudgement<'_>,
    together: bool,
) -> Result<Option<SampleId>, DbError> {
    let EvidenceSnapshot { turn, evidence } = new.turn;
    let judgement = insert_judgement(tx, turn, evidence, together)?;
    for verdict in new.verdicts {
        insert_verdict(tx, turn, judgement, verdict)?;
    }
    let mut hints = Vec::with_capacity(new.hints.len());
    for hint in new.hints {
        hints.push(insert_hint(tx, turn, judgement, hint)?);
    }
    if let Some(NewExperience { hint, max_entries }) = new.experience {
        let hint = hints.get(hint);
        let hint =
            hint.ok_or_else(|| DbError::invalid("experience of a hint that is not there"))?;
        experience::record_hint(tx, turn, *hint, max_entries)?;
    }
    insert_receipts(tx, Some(turn), new.receipts)?;
    let (judging, reason) = match new.outcome {
        JudgementOutcome::Sample(sample) if sample.turn != turn => {
            return Err(DbError::invalid(format!(
                "the sample is of another turn than {turn}"
            )));
        }
        JudgementOutcome::Sample(_) | JudgementOutcome::NoSample => (JudgingState::Done, None),
        JudgementOutcome::Skipped(reason) => (JudgingState::Skipped, Some(reason)),
        JudgementOutcome::KeepPrevious(_) if has_sample(tx, turn)? => (JudgingState::Done, None),
        JudgementOutcome::KeepPrevious(Some(reason)) => (JudgingState::Skipped, Some(reason)),
        JudgementOutcome::KeepPrevious(None) => (JudgingState::Done, None),
    };
    let mut sample = None;
    if !matches!(new.outcome, JudgementOutcome::KeepPrevious(_)) {
        tx.prepare_cached(
            "UPDATE samples SET state = 'dropped', reason = ?2
             WHERE turn = ?1 AND state = 'queued'",
        )?
        .execute((turn.0, REPLACED_BY_LATER_JUDGEMENT))?;
        if let JudgementOutcome::Sample(new) = new.outcome {
            sample = Some(insert_sample(tx, new)?);
        }
    }
    tx.prepare_cached("UPDATE turns SET judging = ?2, reason = ?3 WHERE id = ?1")?
        .execute((turn.0, judging, reason))?;
    Ok(sample)
}

fn has_sample(tx: &Transaction<'_>, turn: TurnId) -> Result<bool, DbError> {
    let mut statement = tx.prepare_cached("SELECT 1 FROM samples WHERE turn = ?1")?;
    Ok(statement.exists([turn.0])?)
}

/// Marks the evidence as judged; returns false if all of it was judged before.
pub(crate) fn mark_evidence_judged(
    tx: &Transaction<'_>,
    turn: TurnId,
    evidence: Option<Evidence>,
) -> Result<bool, DbError> {
    let (next_state, feedback) = match evidence {
        Some(seen) => (
            seen.next_state,
            i64::try_from(seen.feedback).expect("a length fits in an i64"),
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

pub(crate) fn not_judgeable(turn: TurnId, state: TurnState, judging: JudgingState) -> JournalError {
    match (state, judging) {
        (TurnState::Complete, JudgingState::Waiting) | (TurnState::Generating, _) => {
            JournalError::NotReady { turn, state }
        }
        (TurnState::Aborted | TurnState::Failed, _) => JournalError::NotReady { turn, state },
        _ => JournalError::AlreadyJudged { turn, judging },
    }
}

/// Inserts the judgement with the evidence that it saw; `None` means all evidence that exists.
fn insert_judgement(
    tx: &Transaction<'_>,
    turn: TurnId,
    evidence: Option<Evidence>,
    together: bool,
) -> Result<i64, DbError> {
    let (next_state, feedback) = match evidence {
        Some(seen) => (
            Some(seen.next_state),
            Some(i64::try_from(seen.feedback).expect("a length fits in an i64")),
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
    verdict: &VerdictRecord,
) -> Result<(), DbError> {
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

pub(crate) fn insert_sample(tx: &Transaction<'_>, sample: &NewSample) -> Result<SampleId, DbError> {
    let reward = match sample.reward {
        Some(reward) => Some(finite(reward, "the reward")?),
        None if has_hint(tx, sample.turn)? || experience::has_active(tx, sample.turn)? => None,
        None => {
            return Err(DbError::invalid(format!(
                "turn {} has neither a reward nor a hint nor experience: a sample of it would have no training signal",
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
