//! Hint records: the output of hint extractors, stored with the judgement that called them.

use rusqlite::{Connection, Row, Transaction};

use crate::codec::{Float, Json, encode_json, finite};
use crate::error::{DbError, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::{HintOutcome, HintRecord, NewHint, SampleHint};

/// Hints with this many characters or fewer are ignored.
pub const MAX_IGNORED_HINT_CHARS: usize = 10;

impl Journal {
    /// The extractor results for a turn, oldest first: hints, and reasons for no hint.
    ///
    /// # Errors
    /// Database errors.
    pub fn hints(&self, turn: TurnId) -> Result<Vec<HintRecord>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT * FROM hints WHERE turn = ?1 ORDER BY id")?;
            let hints = statement.query_map([turn.0], hint_row)?;
            Ok(hints.collect::<Result<_, _>>()?)
        })
    }
}

pub(crate) fn insert_hint(
    tx: &Transaction<'_>,
    turn: TurnId,
    judgement: i64,
    hint: &NewHint,
) -> Result<i64, DbError> {
    let (text, placement, confidence, reason) = match &hint.outcome {
        HintOutcome::Hint {
            text,
            placement,
            confidence,
        } => {
            if text.trim().is_empty() {
                return Err(DbError::invalid("the text of a hint is empty"));
            }
            let confidence = finite(*confidence, "the confidence of a hint")?;
            (Some(text), Some(*placement), Some(confidence), None)
        }
        HintOutcome::None { reason } => (None, None, None, Some(reason)),
    };
    let id = tx.prepare_cached(
        "INSERT INTO hints (turn, judgement, source, digest, text, placement, confidence, reason, said, metrics, ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .insert((
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
    Ok(id)
}

/// The hints that are loaded with a sample of this turn, oldest first. Results without a hint are left out. Hints that
/// an extractor gave in a later judgement replace its earlier ones, since the later judgement saw all the earlier
/// evidence. Hints extracted from a retracted next state are left out.
pub(crate) fn hints_for_sample(
    conn: &Connection,
    turn: TurnId,
) -> Result<Vec<SampleHint>, DbError> {
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
            confidence: row.get::<_, Float>("confidence")?.0,
            source: row.get("source")?,
            digest: row.get("digest")?,
        })
    })?;
    Ok(hints.collect::<Result<_, _>>()?)
}

/// Whether a turn has a hint that was not extracted from a retracted next state.
pub(crate) fn has_hint(conn: &Connection, turn: TurnId) -> Result<bool, DbError> {
    let mut statement =
        conn.prepare_cached(
        "SELECT 1 FROM hints h WHERE turn = ?1 AND text IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM judgements j WHERE j.id = h.judgement AND j.retraction IS NOT NULL)",
    )?;
    Ok(statement.exists([turn.0])?)
}

/// A row of `hints`.
pub(crate) fn hint_row(row: &Row<'_>) -> rusqlite::Result<HintRecord> {
    let outcome = match row.get::<_, Option<String>>("reason")? {
        Some(reason) => HintOutcome::None { reason },
        None => HintOutcome::Hint {
            text: row.get("text")?,
            placement: row.get("placement")?,
            confidence: row.get::<_, Float>("confidence")?.0,
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
