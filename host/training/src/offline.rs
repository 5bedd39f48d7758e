//! Offline training without a server: runs steps until the queue is empty, or previews the next step without writing
//! anything.
//!
//! The steps are those of [`TrainingLoop`](crate::TrainingLoop): same sample order, same journal, same checkpoints. A queue
//! gives the same adapters here as on a server with the same batches, and a killed run resumes from the journal. It does
//! not wait for groups to grow.

use std::time::Duration;

use std::path::PathBuf;
use std::sync::Arc;

use clawhost_engine::Engine;
use clawhost_journal::{Journal, NewStep, StepId, StepOutcome, now_ms};
use serde_json::Value;

use crate::component::Components;
use crate::distillation::RemoteTeacher;
use crate::error::TrainingError;
use crate::trainer::Trainer;
use clawhost_config::{ExperienceOptions, TrainingOptions};

/// Runs training steps on the queued samples.
pub struct OfflineTrainer {
    trainer: Trainer,
}

/// One recorded step.
#[derive(Debug)]
pub struct OfflineStep {
    /// Id of the step.
    pub id: StepId,
    /// Outcome of the step.
    pub outcome: StepOutcome,
    /// Why the step published no adapter.
    pub reason: Option<String>,
    /// Metrics of the step.
    pub metrics: Value,
    /// Version that training continues from; 0 is the base model. A server serves it too, unless another one is pinned.
    pub version: u64,
    /// Digest of that adapter; empty for the base model.
    pub digest: String,
}

impl OfflineTrainer {
    /// Resumes from the journal like [`TrainingLoop::new`](crate::TrainingLoop::new). The journal must be the only writer
    /// on `data`, which [`Journal::open`] ensures.
    ///
    /// # Errors
    /// As [`TrainingLoop::new`](crate::TrainingLoop::new).
    pub fn open(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        let trainer = Trainer::open(
            journal,
            engine,
            data,
            without_group_wait(options),
            components,
        )?;
        Ok(Self { trainer })
    }

    /// As [`TrainingLoop::with_teacher`](crate::TrainingLoop::with_teacher).
    #[must_use]
    pub fn with_teacher(mut self, teacher: Option<Arc<dyn RemoteTeacher>>) -> Self {
        self.trainer.teacher = teacher;
        self
    }

    /// Sets whether the teacher reads experience. Without this it reads none.
    #[must_use]
    pub fn with_experience(mut self, experience: ExperienceOptions) -> Self {
        self.trainer.experience = experience;
        self
    }

    /// Number of queued samples.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn queued(&self) -> Result<u64, TrainingError> {
        Ok(self.trainer.journal().queued_count()?)
    }

    /// Version that training continues from; 0 is the base model.
    pub fn version(&self) -> u64 {
        self.trainer.version()
    }

    /// Digest of that adapter; empty for the base model.
    pub fn digest(&self) -> &str {
        self.trainer.digest()
    }

    /// Runs the next step. None if the queue is empty, or if no owner of an adapter has `min_batch_size` queued samples
    /// and `train_remainder` is false.
    ///
    /// # Errors
    /// The step cannot be recorded; its samples stay queued then.
    pub fn step(&mut self, train_remainder: bool) -> Result<Option<OfflineStep>, TrainingError> {
        let min_samples = if train_remainder {
            1
        } else {
            self.trainer.options.min_batch_size
        };
        let min_samples = u64::try_from(min_samples).unwrap_or(u64::MAX);
        let Some(recorded) = self.trainer.step_of_at_least(min_samples, now_ms())? else {
            return Ok(None);
        };
        if let Some(publish_error) = recorded.publish_error {
            return Err(publish_error);
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

    /// Computes the next step without recording it, regardless of `min_batch_size`: trained samples with their advantages,
    /// dropped samples with reasons, and all metrics. Its adapter has no files. None if the queue is empty. Writes nothing
    /// and works on a read-only journal next to a running server.
    ///
    /// # Errors
    /// As [`OfflineTrainer::open`], or a component's call failed.
    pub fn preview(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        (options, experience): (TrainingOptions, ExperienceOptions),
        components: Components,
    ) -> Result<Option<NewStep>, TrainingError> {
        let options = without_group_wait(options);
        let mut trainer = Trainer::open_read_only(journal, engine, data, options, components)?;
        trainer.experience = experience;
        trainer.preview(now_ms())
    }
}

/// Offline, groups do not grow.
fn without_group_wait(options: TrainingOptions) -> TrainingOptions {
    TrainingOptions {
        group_wait: Duration::ZERO,
        ..options
    }
}
