//! Which version the engine serves: what steps publish, and what a person promotes, rolls back or holds meanwhile.
//!
//! - *Promote* serves a recorded version at once, *rollback* what was served before the last change, whoever made it (a
//!   step, a promotion), and the one after that goes further back. Training goes on from what is served.
//! - *Pin* serves a version and holds it. Steps go on: each is made from the one before it, proved, recorded as published
//!   and kept as a candidate that nobody is served. When they are further away from what is served than samples may be
//!   (`training.max_staleness`), training waits, and the samples with it. Let go of, the version stays until the next step
//!   publishes one that has learned all that was learned meanwhile.
//! - A step that began before a person changed what is served does not undo that: its adapter is kept as a candidate,
//!   and the next step begins at what is served.
//!
//! A change reaches the engine before the journal: what was read from its checkpoint and is served can be recorded, and a
//! process that is killed between the two starts with what is recorded. Requests that are under way keep their version.
//! It refuses a version that cannot be served here, and leaves everything as it was then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawhost_journal::{AdapterRow, Change, Journal, Standing};
use clawhost_policy::{Engine, Learned};

use crate::checkpoint::Checkpoints;
use crate::current::recorded;
use crate::error::TrainingError;
use crate::lineage::Lineage;
use crate::options::TrainingOptions;

/// The one place from which the served version is changed. Cheap to clone.
#[derive(Clone)]
pub struct Releases {
    inner: Arc<Inner>,
}

struct Inner {
    journal: Journal,
    engine: Engine,
    checkpoints: Checkpoints,
    options: TrainingOptions,
    /// What is served as version 0: what the operator handed in, or nothing but the base.
    beginning: Option<Learned>,
    /// Journal and engine change together.
    changing: Mutex<()>,
}

impl Releases {
    pub(crate) fn new(
        journal: Journal,
        engine: Engine,
        checkpoints: Checkpoints,
        options: TrainingOptions,
    ) -> Self {
        let active = engine.active();
        let inner = Inner {
            beginning: active.learned.filter(|_| active.version == 0),
            journal,
            engine,
            checkpoints,
            options,
            changing: Mutex::new(()),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// What is served, and what follows from how it came to be.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn standing(&self) -> Result<Standing, TrainingError> {
        Ok(self.inner.journal.standing()?)
    }

    /// Changes what is served, by the word of the person with this key. New requests have it as soon as this returns.
    /// Reads a checkpoint, and where another program generates waits until that serves it.
    ///
    /// # Errors
    /// What the journal refuses (see [`Journal::release`]), a version that this model and configuration cannot serve or
    /// whose checkpoint is gone or damaged, an engine that does not take it. Nothing has changed then.
    pub fn change(&self, change: Change, by: Option<&str>) -> Result<Standing, TrainingError> {
        let Inner {
            journal, engine, ..
        } = &*self.inner;
        let _alone = self.alone();
        let version = journal.would_serve(change)?;
        let before = engine.active();
        if version != before.version {
            self.serve(version)?;
        }
        let changed = journal.release(change, by);
        if changed.is_err() && version != before.version {
            engine.release(before.version, before.learned)?;
        }
        let standing = changed?;
        tracing::info!(
            ?change,
            by,
            version = standing.version,
            "a person changed what is served"
        );
        Ok(standing)
    }

    /// While this is held nobody else changes what is served.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        let changing = self.inner.changing.lock();
        // It guards no data.
        changing.unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the engine serve a recorded version. Whoever calls it is [`alone`](Self::alone).
    pub(crate) fn serve(&self, version: u64) -> Result<(), TrainingError> {
        let Inner {
            journal,
            engine,
            checkpoints,
            options,
            beginning,
            ..
        } = &*self.inner;
        if version == 0 {
            engine.release(0, beginning.clone())?;
            return Ok(());
        }
        let rows = journal.adapters()?;
        let row = rows.iter().find(|row| row.version == version);
        let row = row.ok_or(TrainingError::Journal(
            clawhost_journal::JournalError::UnknownAdapter { version },
        ))?;
        let (learned, _) = recorded(row, engine, checkpoints, options, false)?;
        self.serve_this(version, &row.digest, learned)
    }

    /// Has the engine serve what was learned, and asks it what it serves now.
    pub(crate) fn serve_this(
        &self,
        version: u64,
        digest: &str,
        learned: Learned,
    ) -> Result<(), TrainingError> {
        let engine = &self.inner.engine;
        engine.release(version, Some(learned))?;
        let served = engine.active();
        if served.digest != digest {
            return Err(TrainingError::NotServed {
                version,
                expected: digest.to_owned(),
                served: served.digest,
            });
        }
        tracing::info!(version, digest, "adapter published");
        Ok(())
    }

    /// Why training waits although there are samples; none while it need not.
    pub(crate) fn waits(&self) -> Result<Option<String>, TrainingError> {
        let standing = self.standing()?;
        if !standing.pinned || standing.head == standing.version {
            return Ok(None);
        }
        let lineage = Lineage::of(&self.inner.journal.adapters()?);
        let most = self.inner.options.max_staleness;
        let away = lineage.distance(standing.head, standing.version);
        if away.is_some_and(|away| away <= most) {
            return Ok(None);
        }
        Ok(Some(format!(
            "version {} is pinned, and what was made of it since is more than {most} versions away (training.max_staleness); training goes on when it is let go (`DELETE /v1/adapters/pin`) or another version is pinned",
            standing.version
        )))
    }

    /// Versions that must stay whole beside the active one: what training goes on from, and what a rollback returns to.
    pub(crate) fn needed(&self) -> Result<Vec<u64>, TrainingError> {
        let standing = self.standing()?;
        Ok([Some(standing.head), standing.back]
            .into_iter()
            .flatten()
            .collect())
    }
}

/// The row of a version; none for the base model.
pub(crate) fn row_of(version: u64, adapters: &[AdapterRow]) -> Option<&AdapterRow> {
    adapters.iter().find(|row| row.version == version)
}
