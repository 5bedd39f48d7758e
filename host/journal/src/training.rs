//! Taking samples to train and recording what was made of them.
//!
//! A sample leaves the queue in the same transaction that records the step and the adapter. A kill
//! before it leaves the sample queued and no adapter; a kill after it leaves both done.

use rusqlite::{OptionalExtension, Transaction};

use crate::clock::now_ms;
use crate::codec::{Natural, encode_json, encode_u64, finite};
use crate::error::{Fault, JournalError};
use crate::ids::{SampleId, StepId};
use crate::journal::Journal;
use crate::records::{
    AdapterRow, CommittedStep, NewAdapter, NewStep, QueuedSample, SampleRecord, SampleState,
    StaleCount, StepOutcome,
};
use crate::{releasing, rows};

/// How the reason of a sample begins that a step dropped because it was sampled by too old an adapter.
pub const STALE: &str = "stale:";

impl Journal {
    /// All samples that wait for a step, oldest first, without their token data.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn queue(&self) -> Result<Vec<QueuedSample>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT s.id, t.grp, t.adapter_version, s.created_ms FROM samples s
                 JOIN turns t ON t.id = s.turn WHERE s.state = 'queued' ORDER BY s.id",
            )?;
            let samples = statement.query_map([], |row| {
                let Natural(adapter_version) = row.get(2)?;
                Ok(QueuedSample {
                    id: SampleId(row.get(0)?),
                    group: row.get(1)?,
                    adapter_version,
                    created_ms: row.get(3)?,
                })
            })?;
            Ok(samples.collect::<Result<_, _>>()?)
        })
    }

    /// These samples as far as they still wait for a step, in the order of `ids`, with the token data of their turns.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn queued(&self, ids: &[SampleId]) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| {
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                found.extend(rows::samples(
                    conn,
                    "WHERE s.id = ?1 AND s.state = 'queued'",
                    [id.0],
                )?);
            }
            Ok(found)
        })
    }

    /// How many samples there are, and how many of them went stale.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn stale_count(&self) -> Result<StaleCount, JournalError> {
        self.read(|conn| {
            let (Natural(samples), Natural(stale)) = conn
                .prepare_cached(
                    "SELECT (SELECT COUNT(*) FROM samples), (SELECT COUNT(*) FROM samples
                        WHERE state = 'dropped' AND reason >= ?1 AND reason < ?1 || char(1114111))",
                )?
                .query_row([STALE], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(StaleCount { samples, stale })
        })
    }

    /// Samples that wait for a step, oldest first, with the token data of their turns. Taking them
    /// changes nothing: they stay queued until [`Journal::commit_step`].
    ///
    /// # Errors
    /// The faults of the database.
    pub fn queued_samples(&self, limit: u32) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| {
            rows::samples(
                conn,
                "WHERE s.state = 'queued' ORDER BY s.id LIMIT ?1",
                [limit],
            )
        })
    }

    /// How many samples wait for a step.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn queued_count(&self) -> Result<u64, JournalError> {
        self.read(|conn| {
            let Natural(count) = conn
                .prepare_cached("SELECT COUNT(*) FROM samples WHERE state = 'queued'")?
                .query_row([], |row| row.get(0))?;
            Ok(count)
        })
    }

    /// When the sample was made that waits longest, unix milliseconds.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn oldest_queued_ms(&self) -> Result<Option<i64>, JournalError> {
        self.read(|conn| {
            Ok(conn
                .prepare_cached(
                    "SELECT created_ms FROM samples WHERE state = 'queued' ORDER BY id LIMIT 1",
                )?
                .query_row([], |row| row.get(0))
                .optional()?)
        })
    }

    /// Records a step in one transaction: the step, what became of its samples, its adapter and the
    /// meta entries. The adapter of a published step becomes the active one and the one before it is
    /// retired, unless a version is held; that of any other step stays a candidate.
    ///
    /// # Errors
    /// [`JournalError::SampleNotQueued`] when a sample was trained, dropped or forgotten meanwhile:
    /// nothing is recorded, and what was computed must not be published. [`JournalError::AdapterExists`].
    /// [`JournalError::Invalid`] for a published step without an adapter, a failed one with trained
    /// samples, an adapter version 0 or an advantage that is not finite.
    pub fn commit_step(&self, step: &NewStep) -> Result<StepId, JournalError> {
        self.commit_step_begun(step, None)
            .map(|committed| committed.id)
    }

    /// As [`Journal::commit_step`], for a step that began while the release `line` of [`Standing`](crate::Standing)
    /// stood. Its adapter is released only if that still stands and is not held; else it is kept as a candidate, from
    /// which training goes on where the version is merely held.
    ///
    /// # Errors
    /// As [`Journal::commit_step`].
    pub fn commit_step_begun(
        &self,
        step: &NewStep,
        line: Option<i64>,
    ) -> Result<CommittedStep, JournalError> {
        self.write(|tx| {
            check(step)?;
            let id = tx
                .prepare_cached(
                    "INSERT INTO steps (started_ms, ended_ms, outcome, reason, metrics,
                        trained_count, dropped_count)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )?
                .insert((
                    step.started_ms,
                    step.ended_ms,
                    step.outcome,
                    step.reason.as_deref(),
                    encode_json(&step.metrics)?,
                    i64::try_from(step.trained.len()).unwrap_or(i64::MAX),
                    i64::try_from(step.dropped.len()).unwrap_or(i64::MAX),
                ))?;
            let id = StepId(id);
            for (sample, advantage) in &step.trained {
                let advantage = finite(*advantage, "an advantage")?;
                leave_queue(tx, *sample, id, SampleState::Trained, Some(advantage), None)?;
            }
            for (sample, reason) in &step.dropped {
                leave_queue(tx, *sample, id, SampleState::Dropped, None, Some(reason))?;
            }
            let stood = releasing::standing(tx)?;
            let stands = line.is_none_or(|line| line == stood.line);
            let published = step.outcome == StepOutcome::Published;
            let released = published && stands && !stood.pinned;
            if let Some(adapter) = &step.adapter {
                let line = (published && stands).then_some(stood.line);
                insert_adapter(tx, adapter, id, released, line)?;
                if released {
                    releasing::released_by_step(tx, adapter.version)?;
                }
            }
            for (key, value) in &step.meta {
                put_meta(tx, key, value)?;
            }
            Ok(CommittedStep {
                id,
                released,
                standing: releasing::standing(tx)?,
            })
        })
    }

    /// The adapter that is served; none while it is the base model.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn active_adapter(&self) -> Result<Option<AdapterRow>, JournalError> {
        self.read(|conn| {
            Ok(rows::adapters(conn, "WHERE state = 'active'")?
                .into_iter()
                .next())
        })
    }

    /// All adapters, oldest first.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn adapters(&self) -> Result<Vec<AdapterRow>, JournalError> {
        self.read(|conn| rows::adapters(conn, "ORDER BY version"))
    }

    /// An entry of the key-value table.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn meta(&self, key: &str) -> Result<Option<String>, JournalError> {
        self.read(|conn| {
            Ok(conn
                .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
                .query_row([key], |row| row.get(0))
                .optional()?)
        })
    }

    /// Writes an entry of the key-value table; what changes with a step belongs into
    /// [`NewStep::meta`].
    ///
    /// # Errors
    /// The faults of the database.
    pub fn set_meta(&self, key: &str, value: &str) -> Result<(), JournalError> {
        self.write(|tx| put_meta(tx, key, value))
    }
}

fn check(step: &NewStep) -> Result<(), Fault> {
    match (step.outcome, &step.adapter) {
        (StepOutcome::Published, None) => Err(Fault::invalid(
            "a published step must come with its adapter",
        )),
        (StepOutcome::Failed, _) if !step.trained.is_empty() => Err(Fault::invalid(
            "a failed step trains nothing: leave its samples queued, or drop them with a reason",
        )),
        (_, Some(NewAdapter { version: 0, .. })) => Err(Fault::invalid(
            "adapter version 0 is the base model: count from 1",
        )),
        _ => Ok(()),
    }
}

/// The one way out of the queue.
fn leave_queue(
    tx: &Transaction<'_>,
    sample: SampleId,
    step: StepId,
    to: SampleState,
    advantage: Option<f64>,
    reason: Option<&str>,
) -> Result<(), Fault> {
    let moved = tx
        .prepare_cached(
            "UPDATE samples SET state = ?2, step = ?3, advantage = ?4, reason = ?5
             WHERE id = ?1 AND state = 'queued'",
        )?
        .execute((sample.0, to, step.0, advantage, reason))?;
    if moved == 1 {
        return Ok(());
    }
    let state = tx
        .prepare_cached("SELECT state FROM samples WHERE id = ?1")?
        .query_row([sample.0], |row| row.get(0))
        .optional()?;
    Err(JournalError::SampleNotQueued { sample, state }.into())
}

fn insert_adapter(
    tx: &Transaction<'_>,
    adapter: &NewAdapter,
    step: StepId,
    released: bool,
    line: Option<i64>,
) -> Result<(), Fault> {
    let version = encode_u64(adapter.version, "adapter version")?;
    let known = tx
        .prepare_cached("SELECT 1 FROM adapters WHERE version = ?1")?
        .exists([version])?;
    if known {
        return Err(JournalError::AdapterExists {
            version: adapter.version,
        }
        .into());
    }
    if released {
        tx.prepare_cached("UPDATE adapters SET state = 'retired' WHERE state = 'active'")?
            .execute([])?;
    }
    tx.prepare_cached(
        "INSERT INTO adapters (version, parent, digest, path, provenance, created_ms, state, step, line)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute((
        version,
        encode_u64(adapter.parent, "parent version")?,
        &adapter.digest,
        &adapter.path,
        encode_json(&adapter.provenance)?,
        now_ms(),
        if released { "active" } else { "candidate" },
        step.0,
        line,
    ))?;
    Ok(())
}

pub(crate) fn put_meta(tx: &Transaction<'_>, key: &str, value: &str) -> Result<(), Fault> {
    tx.prepare_cached(
        "INSERT INTO meta (key, value) VALUES (?1, ?2)
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )?
    .execute((key, value))?;
    Ok(())
}
