//! The experience of API keys: hints, each kept once, for later conversations of the key.
//!
//! An entry has one source per turn whose hint said it. Hints say the same if they are equal after normalization, or if
//! most of their words are the same and none of the words differ that change the meaning, as negations and numbers do; see
//! [`says_the_same`]. Everything here depends on the recorded hints and their order only.

mod similarity;

use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use crate::clock::now_ms;
use crate::error::{DbError, JournalError};
use crate::ids::{StepId, TurnId};
use crate::journal::Journal;
use crate::records::{
    DistilledExperience, ExperienceEdit, ExperienceEntry, ExperienceState, PromptExperience,
};

use similarity::says_the_same;

/// Longest text of an entry of experience, in bytes.
pub const MAX_EXPERIENCE_BYTES: usize = 4096;
/// Reason of an entry that an edit retired.
const BY_EDIT: &str = "retired by hand";
/// Reason of a forgotten entry whose conversations are gone.
const NO_SOURCE: &str = "its conversations were deleted or retracted";

/// SQL: entries that are not forgotten, with the text of their oldest hint.
const ENTRY: &str =
    "SELECT e.*, (SELECT h.text FROM experience_sources s JOIN hints h ON h.id = s.hint
        WHERE s.entry = e.id ORDER BY s.hint LIMIT 1) AS original
    FROM experience e WHERE e.state <> 'forgotten'";
/// SQL: newest first.
const NEWEST_FIRST: &str = "ORDER BY e.last_ms DESC, e.id DESC";

impl Journal {
    /// The entries of an API key that are not forgotten, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn experience(&self, key: Option<&str>) -> Result<Vec<ExperienceEntry>, JournalError> {
        self.read(|conn| {
            let sql = format!("{ENTRY} AND COALESCE(e.key, '') = ?1 {NEWEST_FIRST}");
            entries(conn, &sql, [key.unwrap_or_default()])
        })
    }

    /// The entries of all API keys that are not forgotten, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn all_experience(&self) -> Result<Vec<ExperienceEntry>, JournalError> {
        self.read(|conn| entries(conn, &format!("{ENTRY} {NEWEST_FIRST}"), []))
    }

    /// Ids and texts of the active entries of an API key, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn active_experience(&self, key: Option<&str>) -> Result<Vec<(i64, String)>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&format!(
                "{ENTRY} AND e.state = 'active' AND COALESCE(e.key, '') = ?1 {NEWEST_FIRST}"
            ))?;
            let found = statement.query_map([key.unwrap_or_default()], |row| {
                Ok((row.get("id")?, entry_text(row)?))
            })?;
            Ok(found.collect::<Result<_, _>>()?)
        })
    }

    /// One entry; `None` if it does not exist or is forgotten.
    ///
    /// # Errors
    /// Database errors.
    pub fn experience_entry(&self, id: i64) -> Result<Option<ExperienceEntry>, JournalError> {
        self.read(|conn| entry(conn, id))
    }

    /// Changes the text or the state of an entry and returns it; `None` if it does not exist or is forgotten. An entry with
    /// a new text is active unless the edit says otherwise, and its divergences no longer count.
    ///
    /// # Errors
    /// [`JournalError::Invalid`] for a blank or too long text, and database errors.
    pub fn edit_experience(
        &self,
        id: i64,
        edit: &ExperienceEdit,
    ) -> Result<Option<ExperienceEntry>, JournalError> {
        let text = edit.text.as_deref().map(str::trim);
        if text.is_some_and(|text| text.is_empty() || text.len() > MAX_EXPERIENCE_BYTES) {
            return Err(JournalError::Invalid(format!(
                "the text of an experience entry is blank or longer than {MAX_EXPERIENCE_BYTES} bytes"
            )));
        }
        self.write(|tx| {
            if let Some(text) = text {
                tx.execute(
                    "UPDATE experience SET edited = ?2 WHERE id = ?1 AND state <> 'forgotten'",
                    (id, text),
                )?;
                tx.execute("DELETE FROM experience_gaps WHERE entry = ?1", [id])?;
            }
            if let Some(active) = edit.active.or(text.map(|_| true)) {
                let (state, reason) = match active {
                    true => (ExperienceState::Active, None),
                    false => (ExperienceState::Retired, Some(BY_EDIT)),
                };
                tx.execute(
                    "UPDATE experience SET state = ?2, reason = ?3 WHERE id = ?1 AND state <> 'forgotten'",
                    (id, state, reason),
                )?;
            }
            entry(tx, id)
        })
    }

    /// Forgets an entry: its text is deleted. Returns whether there was one. The hints that it came from stay in the record
    /// of their turns.
    ///
    /// # Errors
    /// Database errors.
    pub fn forget_experience(&self, id: i64) -> Result<bool, JournalError> {
        self.write(|tx| {
            let known = entry(tx, id)?.is_some();
            if known {
                forget(tx, id, "deleted on request")?;
            }
            Ok(known)
        })
    }

    /// The experience in the prompt of a turn; `None` if there was none.
    ///
    /// # Errors
    /// Database errors.
    pub fn prompt_experience(
        &self,
        turn: TurnId,
    ) -> Result<Option<PromptExperience>, JournalError> {
        self.read(|conn| {
            let inputs = crate::rows::prompt_inputs(conn, turn)?;
            Ok(inputs.and_then(|inputs| inputs.experience))
        })
    }
}

/// Keeps a hint as experience of its turn's key: as a source of the entry that says the same, which becomes active again
/// if the turn is a new source of it, or as a new entry.
pub(crate) fn record_hint(
    tx: &Transaction<'_>,
    turn: TurnId,
    hint: i64,
    max_entries: usize,
) -> Result<(), DbError> {
    let (key, text, ms): (Option<String>, String, i64) = tx
        .prepare_cached(
            "SELECT t.key, h.text, h.ms FROM hints h JOIN turns t ON t.id = h.turn WHERE h.id = ?1 AND h.turn = ?2",
        )?
        .query_row((hint, turn.0), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let same = {
        let mut statement = tx.prepare_cached(&format!(
            "{ENTRY} AND COALESCE(e.key, '') = ?1 ORDER BY e.id"
        ))?;
        let mut rows = statement.query([key.as_deref().unwrap_or_default()])?;
        let mut same = None;
        while let Some(row) = rows.next()? {
            let original: Option<String> = row.get("original")?;
            if says_the_same(&entry_text(row)?, &text)
                || original.is_some_and(|original| says_the_same(&original, &text))
            {
                same = Some(row.get::<_, i64>("id")?);
                break;
            }
        }
        same
    };
    let entry = match same {
        Some(entry) => entry,
        None => tx
            .prepare_cached(
                "INSERT INTO experience (key, state, created_ms, last_ms) VALUES (?1, 'active', ?2, ?2)",
            )?
            .insert((&key, ms))?,
    };
    let new_source = tx
        .prepare_cached(
            "INSERT INTO experience_sources (entry, turn, hint) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        )?
        .execute((entry, turn.0, hint))?;
    if same.is_some() && new_source > 0 {
        tx.prepare_cached(
            "UPDATE experience SET state = 'active', reason = NULL, last_ms = MAX(last_ms, ?2) WHERE id = ?1",
        )?
        .execute((entry, ms))?;
        // What was measured before says nothing about a wish that was not followed since.
        tx.prepare_cached("DELETE FROM experience_gaps WHERE entry = ?1")?
            .execute([entry])?;
    }
    displace(tx, key.as_deref(), max_entries)
}

/// Forgets entries of a key beyond `max_entries`: retired ones first, then those that were not seen for longest.
fn displace(tx: &Transaction<'_>, key: Option<&str>, max_entries: usize) -> Result<(), DbError> {
    let beyond: Vec<i64> = tx
        .prepare_cached(
            "SELECT id FROM experience WHERE COALESCE(key, '') = ?1 AND state <> 'forgotten'
             ORDER BY state = 'retired', last_ms DESC, id DESC LIMIT -1 OFFSET ?2",
        )?
        .query_map(
            (
                key.unwrap_or_default(),
                i64::try_from(max_entries).unwrap_or(i64::MAX),
            ),
            |row| row.get(0),
        )?
        .collect::<Result<_, _>>()?;
    for id in beyond {
        forget(
            tx,
            id,
            "displaced by newer entries (experience.max_entries)",
        )?;
    }
    Ok(())
}

fn forget(tx: &Transaction<'_>, id: i64, reason: &str) -> Result<(), DbError> {
    tx.execute(
        "UPDATE experience SET state = 'forgotten', edited = NULL, reason = ?2 WHERE id = ?1",
        (id, reason),
    )?;
    tx.execute("DELETE FROM experience_sources WHERE entry = ?1", [id])?;
    tx.execute("DELETE FROM experience_gaps WHERE entry = ?1", [id])?;
    Ok(())
}

/// Forgets the entries without a source: their conversations were deleted.
pub(crate) fn forget_without_sources(tx: &Transaction<'_>) -> Result<(), DbError> {
    let gone: Vec<i64> = tx
        .prepare_cached(
            "SELECT id FROM experience e WHERE state <> 'forgotten'
             AND NOT EXISTS (SELECT 1 FROM experience_sources s WHERE s.entry = e.id)",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for id in gone {
        forget(tx, id, NO_SOURCE)?;
    }
    Ok(())
}

/// Removes the hints of a turn whose judgement saw a next state that is retracted now.
pub(crate) fn remove_retracted(tx: &Transaction<'_>, turn: TurnId) -> Result<(), DbError> {
    tx.prepare_cached(
        "DELETE FROM experience_sources WHERE turn = ?1 AND hint IN
            (SELECT h.id FROM hints h JOIN judgements j ON j.id = h.judgement
             WHERE h.turn = ?1 AND j.retraction IS NOT NULL)",
    )?
    .execute([turn.0])?;
    forget_without_sources(tx)
}

/// Whether the API key of a turn has active experience.
pub(crate) fn has_active(conn: &Connection, turn: TurnId) -> Result<bool, DbError> {
    let mut statement = conn.prepare_cached(
        "SELECT 1 FROM turns t JOIN experience e ON COALESCE(e.key, '') = COALESCE(t.key, '')
         WHERE t.id = ?1 AND e.state = 'active'",
    )?;
    Ok(statement.exists([turn.0])?)
}

/// Records the divergences of a step and retires the entries that the weights follow.
pub(crate) fn record_distilled(
    tx: &Transaction<'_>,
    step: StepId,
    distilled: &DistilledExperience,
) -> Result<(), DbError> {
    let ms = now_ms();
    let mut changed = std::collections::BTreeSet::new();
    for turn in &distilled.turns {
        if !turn.gap.is_finite() {
            return Err(DbError::invalid("a divergence is not finite"));
        }
        for entry in &turn.entries {
            // The entry or the turn may have been forgotten since the step began.
            let inserted = tx
                .prepare_cached(
                    "INSERT INTO experience_gaps (entry, turn, step, gap, ms)
                     SELECT e.id, t.id, ?3, ?4, ?5 FROM experience e, turns t
                     WHERE e.id = ?1 AND e.state = 'active' AND t.id = ?2 AND t.received_ms >= e.last_ms",
                )?
                .execute((entry, turn.turn.0, step.0, turn.gap, ms))?;
            if inserted > 0 {
                changed.insert(*entry);
            }
        }
    }
    let turns = i64::try_from(distilled.retire_turns).unwrap_or(i64::MAX);
    for entry in changed {
        let (count, mean): (i64, Option<f64>) = tx
            .prepare_cached(
                "SELECT COUNT(*), AVG(gap) FROM
                    (SELECT gap FROM experience_gaps WHERE entry = ?1 ORDER BY id DESC LIMIT ?2)",
            )?
            .query_row((entry, turns), |row| Ok((row.get(0)?, row.get(1)?)))?;
        if let Some(mean) = mean.filter(|mean| count >= turns && *mean <= distilled.retire_gap) {
            let reason = format!(
                "the weights follow it: mean divergence {mean:.4} nats per token over the last {count} replies without it"
            );
            tx.prepare_cached(
                "UPDATE experience SET state = 'retired', reason = ?2 WHERE id = ?1",
            )?
            .execute((entry, reason))?;
        }
    }
    Ok(())
}

fn entry(conn: &Connection, id: i64) -> Result<Option<ExperienceEntry>, DbError> {
    Ok(entries(conn, &format!("{ENTRY} AND e.id = ?1"), [id])?.pop())
}

fn entries(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<Vec<ExperienceEntry>, DbError> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = statement
        .query_map(params, entry_row)?
        .collect::<Result<Vec<_>, _>>()?;
    let mut turns =
        conn.prepare_cached("SELECT turn FROM experience_sources WHERE entry = ?1 ORDER BY hint")?;
    let mut gaps =
        conn.prepare_cached("SELECT COUNT(*), AVG(gap) FROM experience_gaps WHERE entry = ?1")?;
    for entry in &mut found {
        entry.turns = turns
            .query_map([entry.id], |row| Ok(TurnId(row.get(0)?)))?
            .collect::<Result<_, _>>()?;
        (entry.distilled, entry.gap) = gaps
            .query_row([entry.id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?
            .unwrap_or_default();
    }
    Ok(found)
}

fn entry_text(row: &Row<'_>) -> rusqlite::Result<String> {
    match row.get::<_, Option<String>>("edited")? {
        Some(edited) => Ok(edited),
        None => row.get("original"),
    }
}

fn entry_row(row: &Row<'_>) -> rusqlite::Result<ExperienceEntry> {
    Ok(ExperienceEntry {
        id: row.get("id")?,
        key: row.get("key")?,
        text: entry_text(row)?,
        edited: row.get::<_, Option<String>>("edited")?.is_some(),
        state: row.get("state")?,
        reason: row.get("reason")?,
        turns: Vec::new(),
        created_ms: row.get("created_ms")?,
        last_ms: row.get("last_ms")?,
        distilled: 0,
        gap: None,
    })
}
