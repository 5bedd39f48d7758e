//! One step from the queue to the published adapter, in an order that survives being killed.
//!
//! - draw a batch from the journal's queue,
//! - update a copy of the active adapter,
//! - write the checkpoint and prove that what was written is what was trained,
//! - commit the step to the journal: samples, adapter and running means in one transaction,
//! - publish.
//!
//! Killed before the commit, the samples are still queued and the directory is moved to `adapters/unknown/` at the next
//! start; killed after it, the next start publishes what the journal holds. So no sample is lost and
//! none trains twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clawhost_journal::{AdapterRow, Journal, NewStep, StepId, StepOutcome};
use clawhost_policy::{Engine, Learned};
use serde_json::Value;

use crate::batch::{Batch, Rules, draw};
use crate::checkpoint::Checkpoints;
use crate::component::{Components, InUse};
use crate::current::{Current, take_up};
use crate::error::TrainingError;
use crate::hints::Prompter;
use crate::lineage::Lineage;
use crate::logging::StepLogs;
use crate::metrics::Metrics;
use crate::optimizer::Moments;
use crate::options::{HintChoice, TeacherFrom, TrainingOptions};
use crate::queue::Queue;
use crate::release::Computed;
use crate::releases::{Releases, row_of};
use crate::teaching::Teacher;
use crate::update::{Broken, Task, Updated, update};

/// The trainer's state between steps: a copy of what the journal says.
pub(crate) struct Trainer {
    pub(crate) journal: Journal,
    pub(crate) engine: Engine,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) releases: Releases,
    /// The release under which `current` was taken up.
    pub(crate) line: i64,
    logs: StepLogs,
    pub(crate) options: TrainingOptions,
    components: Components,
    /// The components of the step in progress.
    pub(crate) in_use: InUse,
    pub(crate) current: Current,
    pub(crate) stop: Arc<AtomicBool>,
    /// Asked where `training.teacher.from` is `endpoint`.
    pub(crate) teacher: Option<Arc<dyn Teacher>>,
}

/// A step that is computed and written, but that the journal does not know yet.
pub(crate) struct Prepared {
    pub(crate) step: NewStep,
    pub(crate) next: Option<Current>,
}

#[cfg(test)]
impl Prepared {
    pub(crate) fn step(&self) -> &NewStep {
        &self.step
    }
}

/// A step that is recorded.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) id: StepId,
    pub(crate) outcome: StepOutcome,
    pub(crate) reason: Option<String>,
    pub(crate) metrics: Value,
    /// The step is recorded, but the engine does not serve what it made.
    pub(crate) unserved: Option<TrainingError>,
}

/// An update that is computed.
enum Attempt {
    /// It made an adapter that can be released.
    Made {
        updated: Box<Updated>,
        version: u64,
        digest: String,
    },
    /// It came to nothing.
    Ended(Computed),
}

/// When the next step may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    In(Duration),
    /// When more samples have come.
    Later,
}

impl Trainer {
    /// Takes up where the journal stands and publishes its active adapter.
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
        let mut trainer = Self::over(journal, engine, checkpoints, options, components)?;
        trainer.logs = logs;
        trainer.logs.follow(&trainer.journal);
        if trainer.options.enabled {
            // The last process may have been killed between its last step and this.
            trainer.let_go();
        }
        Ok(trainer)
    }

    /// The same beside whoever has the data directory: nothing in it is touched. Such a trainer can only
    /// [`preview`](Self::preview).
    pub(crate) fn beside(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        options.validate()?;
        Self::over(
            journal,
            engine,
            Checkpoints::beside(&data),
            options,
            components,
        )
    }

    fn over(
        journal: Journal,
        engine: Engine,
        checkpoints: Checkpoints,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        let adapters = journal.adapters()?;
        let standing = journal.standing()?;
        let releases = Releases::new(
            journal.clone(),
            engine.clone(),
            checkpoints.clone(),
            options.clone(),
        );
        let current = take_up(
            &journal,
            &engine,
            &checkpoints,
            &options,
            row_of(standing.head, &adapters),
            &adapters,
        )?;
        let trainer = Self {
            journal,
            engine,
            checkpoints,
            releases,
            line: standing.line,
            // Nothing is written beside another process.
            logs: StepLogs::default(),
            options,
            in_use: components.now(),
            components,
            current,
            stop: Arc::new(AtomicBool::new(false)),
            teacher: None,
        };
        trainer.publish(&standing)?;
        tracing::debug!(version = trainer.current.version, "training taken up");
        Ok(trainer)
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// How long a group is left alone after its newest sample.
    pub(crate) fn group_wait(&self) -> Duration {
        self.options.group_wait().max(Duration::from_millis(10))
    }

    pub(crate) fn version(&self) -> u64 {
        self.current.version
    }

    pub(crate) fn digest(&self) -> &str {
        &self.current.digest
    }

    /// Whether the queue is full enough, or has waited long enough.
    pub(crate) fn due(&self, now_ms: i64) -> Result<Due, TrainingError> {
        let queued = usize::try_from(self.journal.queued_count()?).unwrap_or(usize::MAX);
        if queued >= self.options.min_batch && self.releases.waits()?.is_some() {
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

    /// Makes one step of what is queued; none when all of it belongs to groups that may still grow.
    pub(crate) fn step(&mut self, now_ms: i64) -> Result<Option<Recorded>, TrainingError> {
        match self.prepare(now_ms)? {
            Some(prepared) => self.record(prepared).map(Some),
            None => Ok(None),
        }
    }

    /// Everything up to, but not including, the commit.
    pub(crate) fn prepare(&mut self, started_ms: i64) -> Result<Option<Prepared>, TrainingError> {
        // What is exchanged meanwhile takes part in the next step.
        self.in_use = self.components.now();
        let prepared = self.prepare_with_components(started_ms);
        self.keep_receipts();
        prepared
    }

    /// Puts down what the calls of components cost, whatever became of the step.
    fn keep_receipts(&self) {
        let receipts: Vec<Value> = self
            .in_use
            .receipts()
            .take()
            .iter()
            .filter_map(|receipt| serde_json::to_value(receipt).ok())
            .collect();
        if let Err(error) = self.journal.keep_receipts(&receipts) {
            tracing::warn!(%error, "what the components of a step cost was not recorded");
        }
    }

    fn prepare_with_components(
        &mut self,
        started_ms: i64,
    ) -> Result<Option<Prepared>, TrainingError> {
        let started = Instant::now();
        self.follow()?;
        if self.releases.waits()?.is_some() {
            return Ok(None);
        }
        let adapters = self.journal.adapters()?;
        let Some(batch) = self.draw(started_ms, &adapters)? else {
            return Ok(None);
        };
        let mut metrics = Metrics::of(&batch);
        metrics.draw_seconds = started.elapsed().as_secs_f64();
        metrics.components = self.in_use.told();
        tracing::debug!(
            samples = batch.chosen.len(),
            dropped = batch.dropped.len(),
            "batch drawn"
        );
        let outcome = self.compute(&batch, &adapters, &mut metrics, started)?;
        Ok(Some(
            self.describe(batch, metrics, outcome, started_ms, started),
        ))
    }

    /// The step that would be made of what is queued, down to its numbers; nothing is written.
    pub(crate) fn preview(&mut self, started_ms: i64) -> Result<Option<NewStep>, TrainingError> {
        let started = Instant::now();
        self.in_use = self.components.now();
        let adapters = self.journal.adapters()?;
        let Some(batch) = self.draw(started_ms, &adapters)? else {
            return Ok(None);
        };
        let mut metrics = Metrics::of(&batch);
        metrics.components = self.in_use.told();
        let computed = match self.attempt(&batch, &adapters, &mut metrics)? {
            Attempt::Ended(computed) => computed,
            Attempt::Made {
                updated,
                version,
                digest,
            } => Computed::Adapter {
                next: Box::new(Current {
                    version,
                    digest,
                    learned: updated.learned,
                    moments: updated.moments,
                    baselines: batch.baselines.clone(),
                }),
                provenance: Value::Null,
            },
        };
        Ok(Some(
            self.describe(batch, metrics, computed, started_ms, started)
                .step,
        ))
    }

    /// Commits a step and publishes what it made.
    pub(crate) fn record(&mut self, prepared: Prepared) -> Result<Recorded, TrainingError> {
        let Prepared { step, next } = prepared;
        let releases = self.releases.clone();
        let alone = releases.alone();
        let committed = match self.journal.commit_step_begun(&step, Some(self.line)) {
            Ok(committed) => committed,
            Err(error) => {
                self.discard(&step);
                return Err(error.into());
            }
        };
        let (id, standing) = (committed.id, committed.standing);
        tracing::debug!(step = %id, "step recorded");
        // What a person has overtaken is not gone on from: the next step takes up what stands.
        if let Some(next) = next.filter(|next| next.version == standing.head) {
            self.current = next;
        }
        let mut unserved = None;
        if committed.released {
            self.line = standing.line;
            unserved = self.publish(&standing).err();
        } else if step.outcome == StepOutcome::Published {
            tracing::info!(
                served = standing.version,
                "the adapter of step {id} is kept and not served: a person decides what is"
            );
        }
        drop(alone);
        self.logs.follow(&self.journal);
        if step.outcome == StepOutcome::Published {
            self.let_go();
        }
        Ok(Recorded {
            id,
            outcome: step.outcome,
            reason: step.reason,
            metrics: step.metrics,
            unserved,
        })
    }

    /// Removes the adapter of a step that the journal refused. The samples are still there to make it again.
    fn discard(&self, step: &NewStep) {
        let Some(adapter) = &step.adapter else {
            return;
        };
        // What cannot be asked for stays; the next start moves it aside.
        let unknown = self
            .journal
            .adapters()
            .is_ok_and(|rows| rows.iter().all(|row| row.version != adapter.version));
        if unknown && let Err(error) = self.checkpoints.discard(adapter.version) {
            tracing::warn!(%error, "the adapter of a step that was not recorded stays");
        }
    }

    fn draw(&self, now_ms: i64, adapters: &[AdapterRow]) -> Result<Option<Batch>, TrainingError> {
        let lineage = Lineage::of(adapters);
        let component = self.in_use.advantage(next_version(adapters));
        let queue = Queue::read(
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
        let prompter = Prompter {
            journal: &self.journal,
            engine: &self.engine,
            marker: &teacher.marker,
            most: match teacher.hint_choice(self.options.method) {
                HintChoice::Longest => 1,
                HintChoice::Overlap => teacher.max_hints,
            },
            max_tokens: context,
        };
        let rules = Rules {
            method: self.options.method,
            hinted: &|sample| prompter.prompts(sample),
            estimation: self.options.estimation(),
            overlong: self.options.advantage.overlong(),
            whitens: self.options.whitens_rewards(),
            component,
            batch: self.options.batch,
            max_staleness: self.options.max_staleness,
            max_tokens,
            vocabulary: config.vocab_size,
            active: self.current.version,
            lineage: &lineage,
            settled_ms: now_ms.saturating_sub(group_wait),
        };
        let baselines = &self.current.baselines;
        let samples = self.journal.queued(&queue.fresh)?;
        let batch = draw(samples, &rules, baselines).map_err(|fault| {
            TrainingError::Component(format!("the advantage component gave no result: {fault}"))
        })?;
        Ok(match batch {
            Some(batch) => Some(batch.with_stale(queue.stale)),
            None => Batch::of_stale(queue.stale, baselines),
        })
    }

    /// Updates, writes and proves. `Err` means that nothing can be recorded now.
    fn compute(
        &self,
        batch: &Batch,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
        started: Instant,
    ) -> Result<Computed, TrainingError> {
        let (updated, version, digest) = match self.attempt(batch, adapters, metrics)? {
            Attempt::Ended(computed) => return Ok(computed),
            Attempt::Made {
                updated,
                version,
                digest,
            } => (*updated, version, digest),
        };
        let base = self.engine.model().digest();
        let writing = Instant::now();
        tracing::debug!(version, "update computed");
        let unfinished = self.checkpoints.begin(
            version,
            &format!("sha256:{base}"),
            (&updated.learned, self.engine.files()),
            &updated.moments,
        )?;
        tracing::debug!(version, "checkpoint written");
        metrics.write_seconds = Some(writing.elapsed().as_secs_f64());
        self.release(
            unfinished, updated, version, digest, batch, metrics, started,
        )
    }

    /// Updates a copy of the active adapter. `Err` means that nothing can be recorded now.
    fn attempt(
        &self,
        batch: &Batch,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
    ) -> Result<Attempt, TrainingError> {
        let no_signal = |why: String| Ok(Attempt::Ended(Computed::NoSignal(why)));
        let failed = |why: String| Ok(Attempt::Ended(Computed::Failed(why)));
        if batch.chosen.is_empty() {
            return no_signal(format!(
                "none of the {} samples can teach anything",
                batch.dropped.len()
            ));
        }
        let version = next_version(adapters);
        let component = self.in_use.loss(version);
        let from = self.options.teacher.from;
        let averaged = (from == TeacherFrom::Ema)
            .then(|| averaged(&self.current.learned, &self.current.moments));
        let task = Task {
            model: self.engine.model(),
            learned: &self.current.learned,
            moments: &self.current.moments,
            teacher: match from {
                TeacherFrom::Reference | TeacherFrom::Endpoint => None,
                TeacherFrom::Policy => Some(&self.current.learned),
                TeacherFrom::Ema => averaged.as_ref(),
            },
            elsewhere: self.teacher.as_deref(),
            chosen: &batch.chosen,
            active: self.current.version,
            options: &self.options,
            component,
            seed: self.options.seed ^ version.rotate_left(32),
            stop: &self.stop,
        };
        let updated = match update(&task) {
            Ok(updated) => updated,
            Err(Broken::Stopped) => return Err(TrainingError::Stopped),
            // The samples are as good as before; they wait for a component that answers.
            Err(broken @ Broken::Component(_)) => {
                return Err(TrainingError::Component(broken.to_string()));
            }
            Err(Broken::Teacher(reason)) => return Err(TrainingError::Teacher(reason)),
            Err(broken) => return failed(broken.to_string()),
        };
        metrics.take(&updated.report);
        if updated.report.updates == 0 {
            return no_signal("the gradient is zero".to_owned());
        }
        let change = updated.learned.delta_norm(&self.current.learned);
        metrics.change_norm = Some(change);
        if change == 0.0 {
            return no_signal(
                "the adapter did not change: the update is below the precision of f32".to_owned(),
            );
        }
        if !change.is_finite() {
            return failed("the new adapter is not finite".to_owned());
        }
        let digest = updated.learned.digest();
        if digest == self.current.digest {
            return failed("the new adapter has the digest of the old one".to_owned());
        }
        Ok(Attempt::Made {
            updated: Box::new(updated),
            version,
            digest,
        })
    }
}

/// The running mean of the versions so far; this one itself where none is kept yet.
fn averaged(learned: &Learned, moments: &Moments<f32>) -> Learned {
    let mut averaged = learned.clone();
    for ((_, values), average) in averaged.tensors_mut().into_iter().zip(&moments.average) {
        values.copy_from_slice(average);
    }
    averaged
}

/// The version that the next adapter gets.
pub(crate) fn next_version(adapters: &[AdapterRow]) -> u64 {
    adapters.iter().map(|row| row.version).max().unwrap_or(0) + 1
}
