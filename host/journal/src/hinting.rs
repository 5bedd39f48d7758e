//! Keeping what extractors gave, beside the judgement in which they were asked.

use rusqlite::{Connection, Row, Transaction};

use crate::codec::{Json, Single, encode_json, finite};
use crate::error::{Fault, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::{HintOutcome, HintRecord, NewHint, SampleHint};

impl Journal {
    /// What extractors gave for a turn, oldest first: its hints, and why there was none.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn hints(&self, turn: TurnId) -> Result<Vec<HintRecord>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT * FROM hints WHERE turn = ?1 ORDER BY id")?;
            let hints = statement.query_map([turn.0], hint)?;
            Ok(hints.collect::<Result<_, _>>()?)
        })
    }
}

pub(crate) fn insert_hint(
    tx: &Transaction<'_>,
    turn: TurnId,
    judgement: i64,
    hint: &NewHint,
) -> Result<(), Fault> {
    let (text, placement, confidence, reason) = match &hint.outcome {
        HintOutcome::Hint {
            text,
            placement,
            confidence,
        } => {
            if text.trim().is_empty() {
                return Err(Fault::invalid("a hint without a text is none"));
            }
            let confidence = finite(*confidence, "the confidence of a hint")?;
            (Some(text), Some(*placement), Some(confidence), None)
        }
        HintOutcome::None { reason } => (None, None, None, Some(reason)),
    };
    tx.prepare_cached(
        "INSERT INTO hints (turn, judgement, source, digest, text, placement, confidence, reason, said, metrics, ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute((
        turn.0,
        judgement,
        &hint.source,
        &hint.digest,
        text,
        placement,
        confidence,
        reason,
        &hint.said,
        encode_json(&hint.metrics)?,
        hint.ms,
    ))?;
    Ok(())
}

/// The hints of a turn that a sample of it comes with, oldest first: only what is a hint. What an extractor gave in a
/// later judgement, which saw all that the earlier one saw, takes the place of what it gave before. A hint drawn from a
/// next state that was retracted is none.
pub(crate) fn of_sample(conn: &Connection, turn: TurnId) -> Result<Vec<SampleHint>, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT id, text, placement, confidence, source, digest FROM hints h
         WHERE turn = ?1 AND text IS NOT NULL AND judgement IS
            (SELECT MAX(l.judgement) FROM hints l
             WHERE l.turn = ?1 AND l.source = h.source AND l.text IS NOT NULL)
         AND NOT EXISTS (SELECT 1 FROM judgements j WHERE j.id = h.judgement AND j.retraction IS NOT NULL)
         ORDER BY id",
    )?;
    let hints = statement.query_map([turn.0], |row| {
        Ok(SampleHint {
            id: row.get("id")?,
            text: row.get("text")?,
            placement: row.get("placement")?,
            confidence: row.get::<_, Single>("confidence")?.0,
            source: row.get("source")?,
            digest: row.get("digest")?,
        })
    })?;
    Ok(hints.collect::<Result<_, _>>()?)
}

/// Whether a turn has a hint.
pub(crate) fn is_hinted(conn: &Connection, turn: TurnId) -> Result<bool, Fault> {
    let mut statement =
        conn.prepare_cached(
        "SELECT 1 FROM hints h WHERE turn = ?1 AND text IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM judgements j WHERE j.id = h.judgement AND j.retraction IS NOT NULL)",
    )?;
    Ok(statement.exists([turn.0])?)
}

/// A row of `hints`.
pub(crate) fn hint(row: &Row<'_>) -> rusqlite::Result<HintRecord> {
    let outcome = match row.get::<_, Option<String>>("reason")? {
        Some(reason) => HintOutcome::None { reason },
        None => HintOutcome::Hint {
            text: row.get("text")?,
            placement: row.get("placement")?,
            confidence: row.get::<_, Single>("confidence")?.0,
        },
    };
    let Json(metrics) = row.get("metrics")?;
    Ok(HintRecord {
        id: row.get("id")?,
        turn: TurnId(row.get("turn")?),
        source: row.get("source")?,
        digest: row.get("digest")?,
        outcome,
        said: row.get("said")?,
        metrics,
        ms: row.get("ms")?,
    })
}
