//! Training on what is recorded, without a server: one step after the other until the queue is empty, or the next
//! step as it would be, with nothing written.
//!
//! The steps are those of [`Training`](crate::Training): same order of samples, same journal, same checkpoints. So a
//! queue that a server would have trained in batches of this size gives the same adapters here, and a run that was
//! killed goes on where the journal stands. It waits for nothing: nobody adds to a group any more.

use std::path::PathBuf;
use std::sync::Arc;

use clawhost_journal::{Journal, NewStep, StepId, StepOutcome, now_ms};
use clawhost_policy::Engine;
use serde_json::Value;

use crate::component::Components;
use crate::error::TrainingError;
use crate::options::TrainingOptions;
use crate::teaching::Teacher;
use crate::trainer::Trainer;

/// Makes steps of what is queued.
pub struct Offline {
    trainer: Trainer,
}

/// One recorded step.
#[derive(Debug)]
pub struct OfflineStep {
    /// Which step.
    pub id: StepId,
    /// What it came to.
    pub outcome: StepOutcome,
    /// Why, when it published nothing.
    pub reason: Option<String>,
    /// Its numbers.
    pub metrics: Value,
    /// Version of the adapter that training goes on from after it; 0 is the base model. A server would serve it, too,
    /// unless a person has pinned another.
    pub version: u64,
    /// Digest of that adapter; empty for the base model.
    pub digest: String,
}

impl Offline {
    /// Takes up where the journal stands, as [`Training::new`](crate::Training::new). The journal must be the only
    /// one that is open on `data` for writing, which [`Journal::open`] sees to.
    ///
    /// # Errors
    /// As [`Training::new`](crate::Training::new).
    pub fn open(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        let trainer = Trainer::open(journal, engine, data, settled(options), components)?;
        Ok(Self { trainer })
    }

    /// As [`Training::taught_by`](crate::Training::taught_by).
    #[must_use]
    pub fn taught_by(mut self, teacher: Option<Arc<dyn Teacher>>) -> Self {
        self.trainer.teacher = teacher;
        self
    }

    /// Samples that wait for a step.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn queued(&self) -> Result<u64, TrainingError> {
        Ok(self.trainer.journal().queued_count()?)
    }

    /// Version of the adapter that training goes on from; 0 is the base model.
    pub fn version(&self) -> u64 {
        self.trainer.version()
    }

    /// Digest of that adapter; empty for the base model.
    pub fn digest(&self) -> &str {
        self.trainer.digest()
    }

    /// Makes the next step. None when the queue is empty, or holds less than `min_batch` and `rest` does not say that
    /// such a rest is to be trained as well.
    ///
    /// # Errors
    /// When the step cannot be recorded; its samples are still queued then.
    pub fn step(&mut self, rest: bool) -> Result<Option<OfflineStep>, TrainingError> {
        let queued = self.queued()?;
        let least = if rest {
            1
        } else {
            self.trainer.options.min_batch
        };
        if queued < u64::try_from(least).unwrap_or(u64::MAX) {
            return Ok(None);
        }
        let Some(recorded) = self.trainer.step(now_ms())? else {
            return Ok(None);
        };
        if let Some(unserved) = recorded.unserved {
            return Err(unserved);
        }
        Ok(Some(OfflineStep {
            id: recorded.id,
            outcome: recorded.outcome,
            reason: recorded.reason,
            metrics: recorded.metrics,
            version: self.trainer.version(),
            digest: self.trainer.digest().to_owned(),
        }))
    }

    /// The next step as it would be recorded, whatever `min_batch` says: the samples with their advantages, what
    /// would be dropped and why, and the numbers, computed in full. Its adapter has no files. None when the queue is
    /// empty. Works on a journal that is open for reading only, beside a server, and writes nothing.
    ///
    /// # Errors
    /// As [`Offline::open`], and when a component gives no result.
    pub fn preview(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Option<NewStep>, TrainingError> {
        let options = TrainingOptions {
            // How far each sample would move is what is asked for.
            measure_moved: true,
            ..settled(options)
        };
        let mut trainer = Trainer::beside(journal, engine, data, options, components)?;
        trainer.preview(now_ms())
    }
}

/// No group grows any more.
fn settled(options: TrainingOptions) -> TrainingOptions {
    TrainingOptions {
        group_wait_seconds: 0.0,
        ..options
    }
}
