//! Reads of the sample queue, and commits of training steps and adapters.
//!
//! A sample leaves the queue in the transaction that records the step and the adapter. A kill before the commit leaves
//! the sample queued and no adapter; a kill after it leaves both recorded.

use rusqlite::{OptionalExtension, Transaction};

use crate::clock::now_ms;
use crate::codec::{Unsigned, encode_json, encode_u64, finite};
use crate::error::{DbError, JournalError};
use crate::ids::{SampleId, StepId};
use crate::journal::Journal;
use crate::records::{
    AdapterOwner, AdapterRow, NewAdapter, NewStep, OwnerQueue, QueuedSample, SampleRecord,
    SampleState, StaleCount, StepCommit, StepOutcome,
};
use crate::{experience, releases, rows};

/// Prefix of the drop reason of samples whose adapter version was too old.
pub const STALE_PREFIX: &str = "stale:";

impl Journal {
    /// The queued samples of an owner (`None`: the shared adapter), oldest first, without token data, and without those of
    /// episodes whose round is open.
    ///
    /// # Errors
    /// Database errors.
    pub fn list_queued_samples(
        &self,
        owner: Option<&AdapterOwner>,
    ) -> Result<Vec<QueuedSample>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT s.id, t.grp, t.adapter_version, s.created_ms FROM samples s
                 JOIN turns t ON t.id = s.turn WHERE s.state = 'queued' AND t.owner IS ?1
                 AND NOT EXISTS (
                    SELECT 1 FROM episodes e JOIN environments v ON v.name = e.environment
                    WHERE e.session = t.session AND v.open = 1 AND v.round = e.round)
                 ORDER BY s.id",
            )?;
            let samples = statement.query_map([owner], |row| {
                let Unsigned(adapter_version) = row.get(2)?;
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

    /// The owners with queued samples, in the order in which they take turns: the one whose last step is the longest ago
    /// first. Owners without a step come before all others, in the order of their oldest samples. The samples of episodes
    /// whose round is open do not count.
    ///
    /// # Errors
    /// Database errors.
    pub fn owner_queues(&self) -> Result<Vec<OwnerQueue>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT t.owner, COUNT(*), MIN(s.created_ms) FROM samples s JOIN turns t ON t.id = s.turn
                 WHERE s.state = 'queued'
                 AND NOT EXISTS (
                    SELECT 1 FROM episodes e JOIN environments v ON v.name = e.environment
                    WHERE e.session = t.session AND v.open = 1 AND v.round = e.round)
                 GROUP BY t.owner
                 ORDER BY COALESCE((SELECT MAX(id) FROM steps WHERE steps.owner IS t.owner), 0), MIN(s.id)",
            )?;
            let queues = statement.query_map([], |row| {
                let Unsigned(samples) = row.get(1)?;
                Ok(OwnerQueue {
                    owner: row.get(0)?,
                    samples,
                    oldest_ms: row.get(2)?,
                })
            })?;
            Ok(queues.collect::<Result<_, _>>()?)
        })
    }

    /// The number of owners with adapter versions of their own.
    ///
    /// # Errors
    /// Database errors.
    pub fn adapter_owner_count(&self) -> Result<u64, JournalError> {
        self.read(|conn| {
            let Unsigned(count) = conn
                .prepare_cached("SELECT COUNT(DISTINCT owner) FROM adapters")?
                .query_row([], |row| row.get(0))?;
            Ok(count)
        })
    }

    /// Those of `ids` that are still queued, in the order of `ids`, with the token data of their turns.
    ///
    /// # Errors
    /// Database errors.
    pub fn load_queued_samples(&self, ids: &[SampleId]) -> Result<Vec<SampleRecord>, JournalError> {
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

    /// The number of samples, and how many of them were dropped as stale.
    ///
    /// # Errors
    /// Database errors.
    pub fn stale_count(&self) -> Result<StaleCount, JournalError> {
        self.read(|conn| {
            let (Unsigned(samples), Unsigned(stale)) = conn
                .prepare_cached(
                    "SELECT (SELECT COUNT(*) FROM samples), (SELECT COUNT(*) FROM samples
                        WHERE state = 'dropped' AND reason >= ?1 AND reason < ?1 || char(1114111))",
                )?
                .query_row([STALE_PREFIX], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(StaleCount { samples, stale })
        })
    }

    /// Queued samples, oldest first, with the token data of their turns. Reading them changes nothing: they stay
    /// queued until [`Journal::commit_step`].
    ///
    /// # Errors
    /// Database errors.
    pub fn queued_samples(&self, limit: u32) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| {
            rows::samples(
                conn,
                "WHERE s.state = 'queued' ORDER BY s.id LIMIT ?1",
                [limit],
            )
        })
    }

    /// The number of queued samples.
    ///
    /// # Errors
    /// Database errors.
    pub fn queued_count(&self) -> Result<u64, JournalError> {
        self.read(|conn| {
            let Unsigned(count) = conn
                .prepare_cached("SELECT COUNT(*) FROM samples WHERE state = 'queued'")?
                .query_row([], |row| row.get(0))?;
            Ok(count)
        })
    }

    /// Creation time of the oldest queued sample, unix milliseconds.
    ///
    /// # Errors
    /// Database errors.
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

    /// Records a training step in one transaction: the step, the state of its samples, its adapter and the meta
    /// entries. The adapter of a published step becomes active and the previous one is retired, unless a version is
    /// pinned; the adapter of any other step stays a candidate.
    ///
    /// # Errors
    /// [`JournalError::SampleNotQueued`] if a sample was trained, dropped or deleted in the meantime: nothing is
    /// recorded, and the computed adapter must not be published. [`JournalError::AdapterExists`].
    /// [`JournalError::Invalid`] for a published step without an adapter, a failed step with trained samples, adapter
    /// version 0 or an advantage that is not finite.
    pub fn commit_step(&self, step: &NewStep) -> Result<StepId, JournalError> {
        self.commit_step_at_line(step, None)
            .map(|committed| committed.id)
    }

    /// As [`Journal::commit_step`], for a step of the shared adapter that started when [`ReleaseState::line`](crate::ReleaseState) was `line`.
    /// Its adapter is published only if the line is still current and no version is pinned; otherwise it is recorded as
    /// a candidate. If a version is merely pinned, training continues from that candidate.
    ///
    /// # Errors
    /// As [`Journal::commit_step`].
    pub fn commit_step_at_line(
        &self,
        step: &NewStep,
        line: Option<i64>,
    ) -> Result<StepCommit, JournalError> {
        self.commit_step_of(None, step, line)
    }

    /// As [`Journal::commit_step_at_line`], for the chain of an owner.
    ///
    /// # Errors
    /// As [`Journal::commit_step`].
    pub fn commit_step_of(
        &self,
        owner: Option<&AdapterOwner>,
        step: &NewStep,
        line: Option<i64>,
    ) -> Result<StepCommit, JournalError> {
        self.write(|tx| {
            validate_step(step)?;
            let id = tx
                .prepare_cached(
                    "INSERT INTO steps (started_ms, ended_ms, outcome, reason, metrics,
                        trained_count, dropped_count, owner)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .insert((
                    step.started_ms,
                    step.ended_ms,
                    step.outcome,
                    step.reason.as_deref(),
                    encode_json(&step.metrics)?,
                    i64::try_from(step.trained.len()).expect("a length fits in an i64"),
                    i64::try_from(step.dropped.len()).expect("a length fits in an i64"),
                    owner,
                ))?;
            let id = StepId(id);
            for (sample, advantage) in &step.trained {
                let advantage = finite(*advantage, "an advantage")?;
                dequeue_sample(tx, *sample, id, SampleState::Trained, Some(advantage), None)?;
            }
            for (sample, reason) in &step.dropped {
                dequeue_sample(tx, *sample, id, SampleState::Dropped, None, Some(reason))?;
            }
            let before = releases::release_state(tx, owner)?;
            let is_current = line.is_none_or(|line| line == before.line);
            let published = step.outcome == StepOutcome::Published;
            let released = published && is_current && !before.pinned;
            if let Some(adapter) = &step.adapter {
                let line = (published && is_current).then_some(before.line);
                insert_adapter(tx, adapter, owner, id, released, line)?;
                if released {
                    releases::record_step_release(tx, owner, adapter.version)?;
                }
            }
            for (key, value) in &step.meta {
                put_meta(tx, key, value)?;
            }
            if let Some(distilled) = &step.experience {
                experience::record_distilled(tx, id, distilled)?;
            }
            Ok(StepCommit {
                id,
                released,
                state: releases::release_state(tx, owner)?,
            })
        })
    }

    /// The active shared adapter; `None` while the base model is served.
    ///
    /// # Errors
    /// Database errors.
    pub fn active_adapter(&self) -> Result<Option<AdapterRow>, JournalError> {
        self.active_adapter_of(None)
    }

    /// The active adapter of an owner (`None`: the shared one); `None` while the base model is served.
    ///
    /// # Errors
    /// Database errors.
    pub fn active_adapter_of(
        &self,
        owner: Option<&AdapterOwner>,
    ) -> Result<Option<AdapterRow>, JournalError> {
        self.read(|conn| {
            let active = "WHERE state = 'active' AND owner IS ?1";
            Ok(rows::adapters(conn, active, [owner])?.pop())
        })
    }

    /// All adapters, oldest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn adapters(&self) -> Result<Vec<AdapterRow>, JournalError> {
        self.read(|conn| rows::adapters(conn, "ORDER BY version", []))
    }

    /// An entry of the key-value table.
    ///
    /// # Errors
    /// Database errors.
    pub fn meta(&self, key: &str) -> Result<Option<String>, JournalError> {
        self.read(|conn| {
            Ok(conn
                .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
                .query_row([key], |row| row.get(0))
                .optional()?)
        })
    }

    /// Writes an entry of the key-value table. Entries that change with a step belong in [`NewStep::meta`].
    ///
    /// # Errors
    /// Database errors.
    pub fn set_meta(&self, key: &str, value: &str) -> Result<(), JournalError> {
        self.write(|tx| put_meta(tx, key, value))
    }
}

fn validate_step(step: &NewStep) -> Result<(), DbError> {
    match (step.outcome, &step.adapter) {
        (StepOutcome::Published, None) => {
            Err(DbError::invalid("a published step needs an adapter"))
        }
        (StepOutcome::Failed, _) if !step.trained.is_empty() => Err(DbError::invalid(
            "a failed step cannot have trained samples: leave them queued, or drop them with a reason",
        )),
        (_, Some(NewAdapter { version: 0, .. })) => Err(DbError::invalid(
            "adapter version 0 is the base model: adapter versions start at 1",
        )),
        _ => Ok(()),
    }
}

/// The only transition out of `queued`.
fn dequeue_sample(
    tx: &Transaction<'_>,
    sample: SampleId,
    step: StepId,
    to: SampleState,
    advantage: Option<f64>,
    reason: Option<&str>,
) -> Result<(), DbError> {
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
    owner: Option<&AdapterOwner>,
    step: StepId,
    released: bool,
    line: Option<i64>,
) -> Result<(), DbError> {
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
        tx.prepare_cached(
            "UPDATE adapters SET state = 'retired' WHERE state = 'active' AND owner IS ?1",
        )?
        .execute([owner])?;
    }
    tx.prepare_cached(
        "INSERT INTO adapters (version, parent, digest, path, provenance, created_ms, state, step, line, owner)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
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
        owner,
    ))?;
    Ok(())
}

pub(crate) fn put_meta(tx: &Transaction<'_>, key: &str, value: &str) -> Result<(), DbError> {
    tx.prepare_cached(
        "INSERT INTO meta (key, value) VALUES (?1, ?2)
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )?
    .execute((key, value))?;
    Ok(())
}
