//! Runs training steps: decides when one is due, has it computed ([`crate::step`]), commits it to the journal and publishes
//! its adapter. The order makes it crash-safe:
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

use clawhost_engine::{Engine, LoadedVersion};
use clawhost_journal::{
    AdapterOwner, AdapterRow, Journal, NewStep, OwnerQueue, ReleaseState, StepId, StepOutcome,
};
use serde_json::Value;

use crate::auxiliary::{AuxiliaryMaterial, TermCache, asked, experience, feedback};
use crate::batch::Batch;
use crate::checkpoint::Checkpoints;
use crate::component::{Components, StepComponents};
use crate::distillation::RemoteTeacher;
use crate::error::TrainingError;
use crate::few_shot::FewShot;
use crate::logging::StepLogs;
use crate::metrics::Metrics;
use crate::publisher::{AdapterPublisher, find_adapter};
use crate::queue::next_owner;
use crate::rehearsal::{Rehearsal, RehearsalStep};
use crate::retention::Retention;
use crate::step::{Attempt, StepInputs, next_adapter_version};
use crate::step_record::{PreparedStep, StepResult, build_step_record};
use crate::trainer_state::{TrainerState, load_trainer_state};
use clawhost_config::{ExperienceOptions, TrainingOptions};

/// Runs training steps.
pub(crate) struct Trainer {
    pub(crate) journal: Journal,
    pub(crate) engine: Engine,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) publisher: AdapterPublisher,
    /// The journal's release line when `current` was loaded; another value there means that an operator changed the
    /// active version. None: `current` must be loaded again before the next step.
    release_line: Option<i64>,
    logs: StepLogs,
    pub(crate) options: TrainingOptions,
    /// Whether the teacher reads experience. The callers of `open` set it.
    pub(crate) experience: ExperienceOptions,
    components: Components,
    /// The components of the step in progress.
    pub(crate) step_components: StepComponents,
    pub(crate) current: TrainerState,
    /// Owner of the chain that `current` belongs to; none is the shared adapter.
    owner: Option<AdapterOwner>,
    /// Replies of the base model; none without rehearsal.
    rehearsal: Option<Rehearsal>,
    /// Replies with examples; none without few-shot distillation.
    few_shot: Option<FewShot>,
    /// Auxiliary losses of earlier steps.
    terms: TermCache,
    pub(crate) stop: Arc<AtomicBool>,
    /// Scores replies when `training.teacher.source` is `endpoint`.
    pub(crate) teacher: Option<Arc<dyn RemoteTeacher>>,
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
        let rehearsal = Rehearsal::open(&data, &options, true)?;
        let mut trainer = Self::from_parts(journal, engine, checkpoints, options, components)?;
        trainer.rehearsal = rehearsal;
        trainer.logs = logs;
        trainer.logs.catch_up(&trainer.journal);
        if trainer.options.enabled {
            log_options(&trainer.options);
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
        let rehearsal = Rehearsal::open(&data, &options, false)?;
        let trainer = Self::from_parts(
            journal,
            engine,
            Checkpoints::open_read_only(&data),
            options,
            components,
        )?;
        Ok(Self {
            rehearsal,
            ..trainer
        })
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
        let few_shot = FewShot::open(&options)?;
        let publisher = AdapterPublisher::new(
            journal.clone(),
            engine.clone(),
            checkpoints.clone(),
            options.clone(),
        );
        let current = load_trainer_state(
            &journal,
            &engine,
            (None, engine.active()),
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
            release_line: Some(state.line),
            // `open` replaces it; a read-only trainer writes no logs.
            logs: StepLogs::default(),
            options,
            experience: ExperienceOptions::default(),
            step_components: components.snapshot(),
            components,
            current,
            owner: None,
            // The callers replace it.
            rehearsal: None,
            few_shot,
            terms: TermCache::default(),
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
        self.options.group_wait.max(Duration::from_millis(10))
    }

    pub(crate) fn version(&self) -> u64 {
        self.current.version
    }

    pub(crate) fn digest(&self) -> &str {
        &self.current.digest
    }

    /// When the next step may start, from the length of each owner's queue and the age of its oldest sample.
    pub(crate) fn due(&self, now_ms: i64) -> Result<Due, TrainingError> {
        let mut soonest = Due::Later;
        for queue in self.journal.owner_queues()? {
            soonest = match (soonest, self.due_of(&queue, now_ms)?) {
                (Due::Now, _) | (_, Due::Now) => return Ok(Due::Now),
                (Due::In(one), Due::In(other)) => Due::In(one.min(other)),
                (Due::Later, due) | (due, Due::Later) => due,
            };
        }
        Ok(soonest)
    }

    fn due_of(&self, queue: &OwnerQueue, now_ms: i64) -> Result<Due, TrainingError> {
        let queued = usize::try_from(queue.samples).unwrap_or(usize::MAX);
        if queued < self.options.min_batch_size
            || self
                .publisher
                .wait_reason_of(queue.owner.as_ref())?
                .is_some()
        {
            return Ok(Due::Later);
        }
        if queued >= self.options.batch_size {
            return Ok(Due::Now);
        }
        let waited = Duration::from_millis(u64::try_from(now_ms - queue.oldest_ms).unwrap_or(0));
        Ok(match self.options.max_wait.checked_sub(waited) {
            None | Some(Duration::ZERO) => Due::Now,
            Some(rest) => Due::In(rest),
        })
    }

    /// Why training waits although samples are queued, for the first owner that it waits for; none if it does not wait.
    pub(crate) fn wait_reason(&self) -> Result<Option<String>, TrainingError> {
        if let Some(reason) = self.publisher.wait_reason()? {
            return Ok(Some(reason));
        }
        for queue in self.journal.owner_queues()? {
            if let Some(reason) = self.publisher.wait_reason_of(queue.owner.as_ref())? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    /// Owner of the adapter of the last step; none is the shared one.
    pub(crate) fn owner(&self) -> Option<&AdapterOwner> {
        self.owner.as_ref()
    }

    /// Loads the state from the journal again before the next step. To be called after a panic in [`step`](Self::step).
    pub(crate) fn reload_before_next_step(&mut self) {
        self.release_line = None;
    }

    /// Runs one step of the first owner that is due; see [`step`](Self::step).
    pub(crate) fn step_when_due(
        &mut self,
        now_ms: i64,
    ) -> Result<Option<RecordedStep>, TrainingError> {
        let mut due = Vec::new();
        for queue in self.journal.owner_queues()? {
            if self.due_of(&queue, now_ms)? == Due::Now {
                due.push(queue.owner);
            }
        }
        self.step_of_first(due, now_ms)
    }

    /// Runs one step of the first owner with at least this many queued samples; none if every queued sample belongs to a
    /// group that may still grow.
    pub(crate) fn step_of_at_least(
        &mut self,
        samples: u64,
        now_ms: i64,
    ) -> Result<Option<RecordedStep>, TrainingError> {
        let mut queues = self.journal.owner_queues()?;
        queues.retain(|queue| queue.samples >= samples);
        let owners = queues.into_iter().map(|queue| queue.owner).collect();
        self.step_of_first(owners, now_ms)
    }

    /// Runs one step of the first owner that has a batch.
    fn step_of_first(
        &mut self,
        owners: Vec<Option<AdapterOwner>>,
        now_ms: i64,
    ) -> Result<Option<RecordedStep>, TrainingError> {
        let mut unloaded = None;
        for owner in owners {
            if let Err(error) = self.select_owner(owner) {
                // The state of one owner does not stop the others.
                let owner = self.owner.as_ref().map(AdapterOwner::as_str);
                tracing::error!(owner, %error, "cannot load the adapter to train");
                unloaded = Some(error);
                continue;
            }
            if let Some(prepared) = self.prepare(now_ms)? {
                return self.record(prepared).map(Some);
            }
        }
        unloaded.map_or(Ok(None), Err)
    }

    /// Makes the following steps train the adapter of this owner.
    fn select_owner(&mut self, owner: Option<AdapterOwner>) -> Result<(), TrainingError> {
        if self.owner != owner {
            self.owner = owner;
            self.release_line = None;
        }
        self.sync_with_journal()
    }

    /// Runs one step of the owner that it was last called for, the shared adapter at first; none if every queued sample
    /// belongs to a group that may still grow.
    #[cfg(test)]
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
        if self
            .publisher
            .wait_reason_of(self.owner.as_ref())?
            .is_some()
        {
            return Ok(None);
        }
        let adapters = self.journal.adapters()?;
        let Some(batch) = self.inputs().build_batch(started_ms, &adapters)? else {
            return Ok(None);
        };
        let auxiliary = self.auxiliary_material(&batch, &adapters, started_ms)?;
        let mut metrics = Metrics::from_batch(&batch);
        metrics.draw_seconds = started.elapsed().as_secs_f64();
        metrics.components = self.step_components.identities();
        tracing::debug!(
            samples = batch.chosen.len(),
            dropped = batch.dropped.len(),
            "batch built"
        );
        let inputs = self.inputs();
        let computed = inputs.compute(&batch, &auxiliary, &adapters, &mut metrics, started)?;
        Ok(Some(build_step_record(
            self.owner.as_ref(),
            &self.current,
            &self.experience,
            batch,
            metrics,
            computed,
            (started_ms, started),
        )))
    }

    /// Computes the next step with all its metrics and writes nothing.
    pub(crate) fn preview(&mut self, started_ms: i64) -> Result<Option<NewStep>, TrainingError> {
        let started = Instant::now();
        self.step_components = self.components.snapshot();
        self.select_owner(next_owner(&self.journal)?)?;
        let adapters = self.journal.adapters()?;
        let Some(batch) = self.inputs().build_batch(started_ms, &adapters)? else {
            return Ok(None);
        };
        let auxiliary = self.auxiliary_material(&batch, &adapters, started_ms)?;
        let mut metrics = Metrics::from_batch(&batch);
        metrics.components = self.step_components.identities();
        let attempt = self
            .inputs()
            .update(&batch, &auxiliary, &adapters, &mut metrics)?;
        let computed = match attempt {
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
        let times = (started_ms, started);
        Ok(Some(
            build_step_record(
                self.owner.as_ref(),
                &self.current,
                &self.experience,
                batch,
                metrics,
                computed,
                times,
            )
            .step,
        ))
    }

    /// Commits a step and publishes its adapter.
    pub(crate) fn record(&mut self, prepared: PreparedStep) -> Result<RecordedStep, TrainingError> {
        let PreparedStep { step, next } = prepared;
        let publisher = self.publisher.clone();
        let guard = publisher.lock();
        let owner = self.owner.as_ref();
        let committed = match self.journal.commit_step_of(owner, &step, self.release_line) {
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
            self.release_line = Some(state.line);
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

    /// Reloads the trainer state if an operator or another process changed the active version.
    fn sync_with_journal(&mut self) -> Result<(), TrainingError> {
        let owner = self.owner.as_ref();
        let state = self.journal.release_state_of(owner)?;
        if Some(state.line) == self.release_line && state.head == self.current.version {
            return Ok(());
        }
        let adapters = self.journal.adapters()?;
        self.current = load_trainer_state(
            &self.journal,
            &self.engine,
            (owner, self.publisher.initial_version(owner)),
            &self.checkpoints,
            &self.options,
            find_adapter(state.head, &adapters),
            &adapters,
        )?;
        self.release_line = Some(state.line);
        if self.owner.is_some() {
            // It is loaded for the requests that need it.
            return Ok(());
        }
        let _guard = self.publisher.lock();
        // The operator's change already reached the engine, unless another process made it; and it may have changed again.
        let state = self.journal.release_state()?;
        if self.engine.active().version == state.version {
            return Ok(());
        }
        self.publish(&state)
    }

    /// Makes the engine serve the version of `state` and checks that it does.
    fn publish(&self, state: &ReleaseState) -> Result<(), TrainingError> {
        let version = state.version;
        if let Some(owner) = &self.owner {
            let weights = self.current.weights.clone();
            return self
                .publisher
                .publish_owned(owner, version, (&self.current.digest, weights));
        }
        if version == 0 && self.engine.active().version == 0 {
            // Keep the adapter that the operator passed as version 0.
            return Ok(());
        }
        if version == 0 || version != self.current.version {
            return self.publisher.activate_version(version);
        }
        let TrainerState {
            digest, weights, ..
        } = &self.current;
        self.publisher
            .activate_weights(version, digest, weights.clone())
    }

    /// Applies the retention policy to old checkpoints. A failure is logged; the next call tries again.
    fn remove_old_checkpoints(&self) {
        let apply_retention = || {
            let rows = self.journal.adapters()?;
            let protected = self.publisher.protected_versions(&rows)?;
            let retention = Retention::from(&self.options);
            self.checkpoints
                .apply_retention(&rows, retention, &protected)
        };
        if let Err(error) = apply_retention() {
            tracing::warn!(%error, "cannot remove old checkpoints");
        }
    }

    /// What the auxiliary losses of a step with this batch draw from; nothing if no sample trains.
    fn auxiliary_material(
        &mut self,
        batch: &Batch,
        adapters: &[AdapterRow],
        started_ms: i64,
    ) -> Result<AuxiliaryMaterial, TrainingError> {
        if batch.chosen.is_empty() {
            return Ok(AuxiliaryMaterial::default());
        }
        let (options, version) = (&self.options, next_adapter_version(adapters));
        let (journal, engine) = (&self.journal, &self.engine);
        let mut material = AuxiliaryMaterial::load(
            journal,
            engine,
            options,
            self.owner.as_ref(),
            self.terms.clone(),
            started_ms,
        )?;
        if let Some(rehearsal) = &mut self.rehearsal {
            let feedback = feedback(journal, &batch.chosen, &material.pairs)?;
            let asked = asked(journal, &batch.chosen, &material.pairs)?;
            let experience = experience(journal, &batch.chosen)?;
            let policy = match options.rehearsal.policy_replies {
                0 => None,
                _ => load_policy(engine, &self.current)?,
            };
            let step = RehearsalStep {
                version,
                policy: policy.as_ref(),
                feedback: &feedback,
                asked: &asked,
                experience: &experience,
            };
            material.rehearsal = Some(rehearsal.prepare(engine, options, &step, &self.stop)?);
        }
        if let Some(few_shot) = &mut self.few_shot {
            let pairs = &material.pairs;
            material.few_shot = few_shot.prepare(journal, engine, options, pairs, &self.stop)?;
        }
        Ok(material)
    }

    /// What the next step is computed from.
    pub(crate) fn inputs(&self) -> StepInputs<'_> {
        StepInputs {
            journal: &self.journal,
            engine: &self.engine,
            checkpoints: &self.checkpoints,
            options: &self.options,
            experience: &self.experience,
            components: &self.step_components,
            current: &self.current,
            owner: self.owner.as_ref(),
            teacher: self.teacher.as_deref(),
            stop: &self.stop,
        }
    }
}

/// The adapter of a state as a version that the engine can serve, though it may not be the active one: it is pinned, or an owner's.
/// None before the first step, when nothing was learned from the user yet.
fn load_policy(
    engine: &Engine,
    current: &TrainerState,
) -> Result<Option<LoadedVersion>, TrainingError> {
    if current.digest.is_empty() {
        return Ok(None);
    }
    let active = engine.active();
    if active.digest() == current.digest {
        return Ok(Some(active));
    }
    Ok(Some(engine.load_candidate(
        current.version,
        current.weights.clone(),
    )?))
}

/// Logs what the next steps do. Some of it depends on the size of the model.
fn log_options(options: &TrainingOptions) {
    tracing::info!(
        method = ?options.method,
        learning_rate = options.optimizer.learning_rate,
        batch_size = options.batch_size,
        epochs = options.num_epochs,
        pairs = ?options.pairs.loss,
        rehearsal = options.rehearsal.enabled,
        "training is on"
    );
}
