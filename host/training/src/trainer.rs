//! One training step, from the queue to the published adapter. The order makes it crash-safe:
//!
//! 1. build a batch from the journal's queue,
//! 2. update a copy of the current weights,
//! 3. write the checkpoint and verify it against the trained weights,
//! 4. commit the step to the journal: samples, adapter and reward baselines in one transaction,
//! 5. publish.
//!
//! If the process is killed before the commit, the samples are still queued and the next start moves the checkpoint to
//! `adapters/unknown/`. If it is killed after the commit, the next start publishes the recorded version. No sample is lost
//! and none trains twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clawhost_journal::{AdapterRow, Journal, NewStep, StepId, StepOutcome};
use clawhost_policy::{Engine, TrainedWeights};
use serde_json::Value;

use crate::batch::{Batch, BatchRules, build_batch};
use crate::checkpoint::Checkpoints;
use crate::component::{Components, StepComponents};
use crate::distillation::RemoteTeacher;
use crate::error::TrainingError;
use crate::hints::HintedPromptBuilder;
use crate::lineage::Lineage;
use crate::logging::StepLogs;
use crate::metrics::Metrics;
use crate::optimizer::OptimizerState;
use crate::options::{HintSelection, TeacherSource, TrainingOptions};
use crate::publisher::{AdapterPublisher, find_adapter};
use crate::queue::StepQueue;
use crate::step_outcome::StepResult;
use crate::trainer_state::{TrainerState, load_trainer_state};
use crate::update::{UpdateError, UpdateOutput, UpdateTask, update};

/// Runs training steps.
pub(crate) struct Trainer {
    pub(crate) journal: Journal,
    pub(crate) engine: Engine,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) publisher: AdapterPublisher,
    /// The journal's release line when `current` was loaded; another value there means that an operator changed the
    /// active version.
    pub(crate) release_line: i64,
    logs: StepLogs,
    pub(crate) options: TrainingOptions,
    components: Components,
    /// The components of the step in progress.
    pub(crate) step_components: StepComponents,
    pub(crate) current: TrainerState,
    pub(crate) stop: Arc<AtomicBool>,
    /// Scores replies when `training.teacher.from` is `endpoint`.
    pub(crate) teacher: Option<Arc<dyn RemoteTeacher>>,
}

/// A computed step whose checkpoint is written, not yet committed to the journal.
pub(crate) struct PreparedStep {
    pub(crate) step: NewStep,
    pub(crate) next: Option<TrainerState>,
}

#[cfg(test)]
impl PreparedStep {
    pub(crate) fn step(&self) -> &NewStep {
        &self.step
    }
}

/// A step that is committed to the journal.
#[derive(Debug)]
pub(crate) struct RecordedStep {
    pub(crate) id: StepId,
    pub(crate) outcome: StepOutcome,
    pub(crate) reason: Option<String>,
    pub(crate) metrics: Value,
    /// Why the engine does not serve the recorded adapter.
    pub(crate) publish_error: Option<TrainingError>,
}

/// Result of the update.
enum Attempt {
    /// New weights, ready to be written and verified.
    Updated {
        updated: Box<UpdateOutput>,
        version: u64,
        digest: String,
    },
    /// No new weights: the step ends here.
    Finished(StepResult),
}

/// When the next step may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    In(Duration),
    /// Once more samples are queued.
    Later,
}

impl Trainer {
    /// Resumes from the journal and publishes its active adapter.
    pub(crate) fn open(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        options.validate()?;
        let checkpoints = Checkpoints::open(&data, &journal.adapters()?)?;
        let logs = StepLogs::new(&data, &options.log);
        let mut trainer = Self::from_parts(journal, engine, checkpoints, options, components)?;
        trainer.logs = logs;
        trainer.logs.catch_up(&trainer.journal);
        if trainer.options.enabled {
            // The previous process may have been killed before it did this.
            trainer.remove_old_checkpoints();
        }
        Ok(trainer)
    }

    /// Opens a trainer that writes nothing, next to the process that owns the data directory. It can only
    /// [`preview`](Self::preview).
    pub(crate) fn open_read_only(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        options.validate()?;
        Self::from_parts(
            journal,
            engine,
            Checkpoints::open_read_only(&data),
            options,
            components,
        )
    }

    fn from_parts(
        journal: Journal,
        engine: Engine,
        checkpoints: Checkpoints,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        let adapters = journal.adapters()?;
        let state = journal.release_state()?;
        let publisher = AdapterPublisher::new(
            journal.clone(),
            engine.clone(),
            checkpoints.clone(),
            options.clone(),
        );
        let current = load_trainer_state(
            &journal,
            &engine,
            &checkpoints,
            &options,
            find_adapter(state.head, &adapters),
            &adapters,
        )?;
        let trainer = Self {
            journal,
            engine,
            checkpoints,
            publisher,
            release_line: state.line,
            // `open` replaces it; a read-only trainer writes no logs.
            logs: StepLogs::default(),
            options,
            step_components: components.snapshot(),
            components,
            current,
            stop: Arc::new(AtomicBool::new(false)),
            teacher: None,
        };
        trainer.publish(&state)?;
        tracing::debug!(version = trainer.current.version, "trainer state loaded");
        Ok(trainer)
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// How long a group waits for more samples after its newest one.
    pub(crate) fn group_wait(&self) -> Duration {
        self.options.group_wait().max(Duration::from_millis(10))
    }

    pub(crate) fn version(&self) -> u64 {
        self.current.version
    }

    pub(crate) fn digest(&self) -> &str {
        &self.current.digest
    }

    /// When the next step may start, from the queue's length and the age of its oldest sample.
    pub(crate) fn due(&self, now_ms: i64) -> Result<Due, TrainingError> {
        let queued = usize::try_from(self.journal.queued_count()?).unwrap_or(usize::MAX);
        if queued >= self.options.min_batch && self.publisher.wait_reason()?.is_some() {
            return Ok(Due::Later);
        }
        if queued >= self.options.batch {
            return Ok(Due::Now);
        }
        if queued < self.options.min_batch {
            return Ok(Due::Later);
        }
        let Some(oldest) = self.journal.oldest_queued_ms()? else {
            return Ok(Due::Later);
        };
        let waited = Duration::from_millis(u64::try_from(now_ms - oldest).unwrap_or(0));
        Ok(match self.options.max_wait().checked_sub(waited) {
            None | Some(Duration::ZERO) => Due::Now,
            Some(rest) => Due::In(rest),
        })
    }

    /// Runs one step; none if every queued sample belongs to a group that may still grow.
    pub(crate) fn step(&mut self, now_ms: i64) -> Result<Option<RecordedStep>, TrainingError> {
        match self.prepare(now_ms)? {
            Some(prepared) => self.record(prepared).map(Some),
            None => Ok(None),
        }
    }

    /// Runs a step up to, but not including, the commit.
    pub(crate) fn prepare(
        &mut self,
        started_ms: i64,
    ) -> Result<Option<PreparedStep>, TrainingError> {
        // A component that is replaced during this step is used from the next step on.
        self.step_components = self.components.snapshot();
        let prepared = self.prepare_with_components(started_ms);
        self.record_receipts();
        prepared
    }

    /// Records the cost of the step's component calls, whatever the step's outcome.
    fn record_receipts(&self) {
        let receipts: Vec<Value> = self
            .step_components
            .receipts()
            .drain()
            .iter()
            .filter_map(|receipt| serde_json::to_value(receipt).ok())
            .collect();
        if let Err(error) = self.journal.record_receipts(&receipts) {
            tracing::warn!(%error, "cannot record the receipts of a step's component calls");
        }
    }

    fn prepare_with_components(
        &mut self,
        started_ms: i64,
    ) -> Result<Option<PreparedStep>, TrainingError> {
        let started = Instant::now();
        self.sync_with_journal()?;
        if self.publisher.wait_reason()?.is_some() {
            return Ok(None);
        }
        let adapters = self.journal.adapters()?;
        let Some(batch) = self.build_batch(started_ms, &adapters)? else {
            return Ok(None);
        };
        let mut metrics = Metrics::from_batch(&batch);
        metrics.draw_seconds = started.elapsed().as_secs_f64();
        metrics.components = self.step_components.identities();
        tracing::debug!(
            samples = batch.chosen.len(),
            dropped = batch.dropped.len(),
            "batch built"
        );
        let outcome = self.compute_step(&batch, &adapters, &mut metrics, started)?;
        Ok(Some(self.build_step_record(
            batch, metrics, outcome, started_ms, started,
        )))
    }

    /// Computes the next step with all its metrics and writes nothing.
    pub(crate) fn preview(&mut self, started_ms: i64) -> Result<Option<NewStep>, TrainingError> {
        let started = Instant::now();
        self.step_components = self.components.snapshot();
        let adapters = self.journal.adapters()?;
        let Some(batch) = self.build_batch(started_ms, &adapters)? else {
            return Ok(None);
        };
        let mut metrics = Metrics::from_batch(&batch);
        metrics.components = self.step_components.identities();
        let computed = match self.compute_update(&batch, &adapters, &mut metrics)? {
            Attempt::Finished(computed) => computed,
            Attempt::Updated {
                updated,
                version,
                digest,
            } => StepResult::Adapter {
                next: Box::new(TrainerState {
                    version,
                    digest,
                    weights: updated.weights,
                    optimizer_state: updated.optimizer_state,
                    baselines: batch.baselines.clone(),
                }),
                provenance: Value::Null,
            },
        };
        Ok(Some(
            self.build_step_record(batch, metrics, computed, started_ms, started)
                .step,
        ))
    }

    /// Commits a step and publishes its adapter.
    pub(crate) fn record(&mut self, prepared: PreparedStep) -> Result<RecordedStep, TrainingError> {
        let PreparedStep { step, next } = prepared;
        let publisher = self.publisher.clone();
        let guard = publisher.lock();
        let committed = match self
            .journal
            .commit_step_at_line(&step, Some(self.release_line))
        {
            Ok(committed) => committed,
            Err(error) => {
                self.discard_checkpoint(&step);
                return Err(error.into());
            }
        };
        let (id, state) = (committed.id, committed.state);
        tracing::debug!(step = %id, "step recorded");
        // If an operator changed the active version meanwhile, the next step reloads the state from the journal.
        if let Some(next) = next.filter(|next| next.version == state.head) {
            self.current = next;
        }
        let mut publish_error = None;
        if committed.released {
            self.release_line = state.line;
            publish_error = self.publish(&state).err();
        } else if step.outcome == StepOutcome::Published {
            tracing::info!(
                served = state.version,
                "the adapter of step {id} is kept as a candidate: an operator selected the active version"
            );
        }
        drop(guard);
        self.logs.catch_up(&self.journal);
        if step.outcome == StepOutcome::Published {
            self.remove_old_checkpoints();
        }
        Ok(RecordedStep {
            id,
            outcome: step.outcome,
            reason: step.reason,
            metrics: step.metrics,
            publish_error,
        })
    }

    /// Removes the checkpoint of a step that the journal rejected. Its samples are still queued.
    fn discard_checkpoint(&self, step: &NewStep) {
        let Some(adapter) = &step.adapter else {
            return;
        };
        // If the journal cannot be read, keep the checkpoint; the next start moves it to `unknown/`.
        let unknown = self
            .journal
            .adapters()
            .is_ok_and(|rows| rows.iter().all(|row| row.version != adapter.version));
        if unknown && let Err(error) = self.checkpoints.discard(adapter.version) {
            tracing::warn!(%error, "cannot remove the checkpoint of a step that was not recorded");
        }
    }

    fn build_batch(
        &self,
        now_ms: i64,
        adapters: &[AdapterRow],
    ) -> Result<Option<Batch>, TrainingError> {
        let lineage = Lineage::from_adapters(adapters);
        let component = self
            .step_components
            .advantage(next_adapter_version(adapters));
        let queue = StepQueue::load(
            &self.journal,
            &lineage,
            self.current.version,
            &self.options,
            component.is_some(),
        )?;
        let config = self.engine.model().config();
        let context = config.max_position_embeddings;
        let group_wait = i64::try_from(self.options.group_wait().as_millis()).unwrap_or(i64::MAX);
        let max_tokens = match self.options.max_sample_tokens {
            0 => context,
            limit => limit.min(context),
        };
        let teacher = &self.options.teacher;
        let prompt_builder = HintedPromptBuilder {
            journal: &self.journal,
            engine: &self.engine,
            marker: &teacher.marker,
            max_hints: match teacher.hint_selection(self.options.method) {
                HintSelection::Longest => 1,
                HintSelection::Overlap => teacher.max_hints,
            },
            max_tokens: context,
        };
        let rules = BatchRules {
            method: self.options.method,
            hinted: &|sample| prompt_builder.build(sample),
            estimator_config: self.options.estimator_config(),
            overlong: self.options.advantage.overlong(),
            whitens: self.options.whitens_batch(),
            component,
            batch: self.options.batch,
            max_staleness: self.options.max_staleness,
            max_tokens,
            vocabulary: config.vocab_size,
            active: self.current.version,
            lineage: &lineage,
            group_cutoff_ms: now_ms.saturating_sub(group_wait),
        };
        let baselines = &self.current.baselines;
        let samples = self.journal.load_queued_samples(&queue.fresh)?;
        let batch = build_batch(samples, &rules, baselines).map_err(|fault| {
            TrainingError::Component(format!("the advantage component gave no result: {fault}"))
        })?;
        Ok(match batch {
            Some(batch) => Some(batch.with_stale(queue.stale)),
            None => Batch::from_stale(queue.stale, baselines),
        })
    }

    /// Updates the weights, writes the checkpoint and verifies it. `Err` means that no step can be recorded now.
    fn compute_step(
        &self,
        batch: &Batch,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
        started: Instant,
    ) -> Result<StepResult, TrainingError> {
        let (updated, version, digest) = match self.compute_update(batch, adapters, metrics)? {
            Attempt::Finished(computed) => return Ok(computed),
            Attempt::Updated {
                updated,
                version,
                digest,
            } => (*updated, version, digest),
        };
        let base = self.engine.model().digest();
        let writing = Instant::now();
        tracing::debug!(version, "update computed");
        let pending = self.checkpoints.write(
            version,
            &format!("sha256:{base}"),
            (&updated.weights, self.engine.files()),
            &updated.optimizer_state,
        )?;
        tracing::debug!(version, "checkpoint written");
        metrics.write_seconds = Some(writing.elapsed().as_secs_f64());
        self.verify_and_commit(pending, updated, version, digest, batch, metrics, started)
    }

    /// Updates a copy of the current weights. `Err` means that no step can be recorded now.
    fn compute_update(
        &self,
        batch: &Batch,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
    ) -> Result<Attempt, TrainingError> {
        let no_signal = |why: String| Ok(Attempt::Finished(StepResult::NoSignal(why)));
        let failed = |why: String| Ok(Attempt::Finished(StepResult::Failed(why)));
        if batch.chosen.is_empty() {
            return no_signal(format!(
                "none of the {} samples has a training signal",
                batch.dropped.len()
            ));
        }
        let version = next_adapter_version(adapters);
        let component = self.step_components.loss(version);
        let from = self.options.teacher.from;
        let ema = (from == TeacherSource::Ema)
            .then(|| ema_weights(&self.current.weights, &self.current.optimizer_state));
        let task = UpdateTask {
            model: self.engine.model(),
            weights: &self.current.weights,
            optimizer_state: &self.current.optimizer_state,
            teacher: match from {
                TeacherSource::Reference | TeacherSource::Endpoint => None,
                TeacherSource::Policy => Some(&self.current.weights),
                TeacherSource::Ema => ema.as_ref(),
            },
            remote_teacher: self.teacher.as_deref(),
            chosen: &batch.chosen,
            active: self.current.version,
            options: &self.options,
            component,
            seed: self.options.seed ^ version.rotate_left(32),
            stop: &self.stop,
        };
        let updated = match update(&task) {
            Ok(updated) => updated,
            Err(UpdateError::Stopped) => return Err(TrainingError::Stopped),
            // The samples are not at fault: they stay queued until the component works.
            Err(error @ UpdateError::Component(_)) => {
                return Err(TrainingError::Component(error.to_string()));
            }
            Err(UpdateError::Teacher(reason)) => return Err(TrainingError::Teacher(reason)),
            Err(error) => return failed(error.to_string()),
        };
        metrics.set_update(&updated.report);
        if updated.report.updates == 0 {
            return no_signal("the gradient is zero".to_owned());
        }
        let change = updated.weights.delta_norm(&self.current.weights);
        metrics.change_norm = Some(change);
        if change == 0.0 {
            return no_signal(
                "the adapter did not change: the update is below the precision of f32".to_owned(),
            );
        }
        if !change.is_finite() {
            return failed("the new adapter has values that are not finite".to_owned());
        }
        let digest = updated.weights.digest();
        if digest == self.current.digest {
            return failed("the new adapter has the same digest as the old one".to_owned());
        }
        Ok(Attempt::Updated {
            updated: Box::new(updated),
            version,
            digest,
        })
    }
}

/// The exponential moving average of the weights over past versions; `weights` itself before the first update.
fn ema_weights(weights: &TrainedWeights, optimizer_state: &OptimizerState<f32>) -> TrainedWeights {
    let mut ema = weights.clone();
    for ((_, values), average) in ema.tensors_mut().into_iter().zip(&optimizer_state.ema) {
        values.copy_from_slice(average);
    }
    ema
}

/// The version number of the next adapter.
pub(crate) fn next_adapter_version(adapters: &[AdapterRow]) -> u64 {
    adapters.iter().map(|row| row.version).max().unwrap_or(0) + 1
}
