//! The training loop: waits until a batch is full or its oldest sample has waited long enough, runs a step, and continues
//! whatever the step's outcome.
//!
//! One dedicated thread does all of the work, because it blocks and keeps its low priority. A journal notification wakes it;
//! whether a step is due depends only on the journal's content. A panic while a step is computed fails that step, which is
//! recorded with the panic as its reason. After any other panic the samples stay queued, and the thread tries again later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use clawhost_engine::{BackgroundWork, Engine};
use clawhost_journal::{Journal, JournalError, StepOutcome, now_ms};
use clawhost_plugins::panic_message;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::component::Components;
use crate::distillation::RemoteTeacher;
use crate::error::TrainingError;
use crate::publisher::AdapterPublisher;
use crate::state::{TrainingSnapshot, TrainingState};
use crate::trainer::{Due, RecordedStep, Trainer};
use clawhost_config::{ExperienceOptions, TrainingOptions};

/// First delay after a step that could not be recorded; doubles up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Trains adapters from the journal's queue.
pub struct TrainingLoop {
    trainer: Trainer,
    state: TrainingState,
}

impl TrainingLoop {
    /// Resumes from the journal: loads the active adapter and the optimizer state from `data`/adapters, moves checkpoints
    /// that no step recorded to `adapters/unknown/`, and publishes the adapter to the engine.
    ///
    /// # Errors
    /// An invalid option, a checkpoint that does not match the journal, or a data directory or journal that cannot be read.
    pub fn new(
        journal: Journal,
        engine: Engine,
        data: PathBuf,
        options: TrainingOptions,
        components: Components,
    ) -> Result<Self, TrainingError> {
        let trainer = Trainer::open(journal, engine, data, options, components)?;
        let counts = trainer.journal().counts()?;
        let state = TrainingState::new(TrainingSnapshot {
            queued: trainer.journal().queued_count()?,
            steps: counts.steps.values().sum(),
            published: counts
                .steps
                .get(&StepOutcome::Published)
                .copied()
                .unwrap_or(0),
            version: trainer.version(),
            owners: trainer.journal().adapter_owner_count()?,
            digest: trainer.digest().to_owned(),
            last_metrics: trainer.journal().steps(1)?.pop().map(|step| step.metrics),
            ..TrainingSnapshot::default()
        });
        state.set_stale(trainer.journal().stale_count()?);
        Ok(Self { trainer, state })
    }

    /// Sets the teacher that scores replies when `training.teacher.source` is `endpoint`.
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

    /// A handle to the status of training.
    pub fn state(&self) -> TrainingState {
        self.state.clone()
    }

    /// A handle that promotes, pins and rolls back versions while training runs.
    pub fn publisher(&self) -> AdapterPublisher {
        self.trainer.publisher.clone()
    }

    /// Trains until `stop` becomes true or its sender is dropped. A step in progress is aborted between two micro-batches
    /// and nothing of it is recorded.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { trainer, state } = self;
        let mut changes = trainer.journal().watch();
        let aborted = trainer.stop.clone();
        let options = &trainer.options;
        let engine = &trainer.engine;
        let share = options.busy_share;
        let share = share.unwrap_or_else(|| engine.backend().training_share());
        let background = BackgroundWork::new(engine, options.nice, share);
        // One notification is enough: the worker reads everything from the journal.
        let (wake, woken) = sync_channel(1);
        let (ended, mut end) = oneshot::channel::<()>();
        let work = {
            let (background, runtime, state) =
                (background.clone(), Handle::current(), state.clone());
            move || {
                // Dropped when the thread ends, however it ends.
                let _ended = ended;
                // Steps call components, which need the runtime.
                let _context = runtime.enter();
                let worker = Worker {
                    trainer,
                    state,
                    background,
                    woken,
                };
                worker.run();
            }
        };
        let named = std::thread::Builder::new().name("clawhost-training".to_owned());
        if let Err(error) = named.spawn(work) {
            tracing::error!(%error, "the training thread cannot be started; training is off");
            state.update(|s| s.last_error = Some(TrainingError::Thread(error).to_string()));
            return;
        }
        loop {
            tokio::select! {
                biased;
                () = wait_for_stop(&mut stop) => break,
                _ = &mut end => return,
                changed = changes.changed() => match changed {
                    Ok(()) => {
                        // A full channel means that the worker has not read the last notification yet.
                        let _ = wake.try_send(());
                    }
                    Err(_) => break,
                },
            }
        }
        aborted.store(true, Ordering::Relaxed);
        background.stop_yielding();
        drop(wake);
        // The sender is never used, only dropped.
        let _ = end.await;
    }
}

/// The thread of the training loop.
struct Worker {
    trainer: Trainer,
    state: TrainingState,
    background: BackgroundWork,
    /// Notifications of the journal; closed to end the loop.
    woken: Receiver<()>,
}

/// What the loop does next.
enum Next {
    /// Check at once whether another step is due.
    Check,
    /// Wait for a notification, or for this time.
    Wait(Option<Duration>),
}

impl Worker {
    fn run(mut self) {
        let mut retry_delay = MIN_RETRY_DELAY;
        loop {
            // Notifications that are already there are answered by the check that follows.
            let closed = loop {
                match self.woken.try_recv() {
                    Ok(()) => {}
                    Err(empty) => break empty == TryRecvError::Disconnected,
                }
            };
            if closed || self.trainer.stop.load(Ordering::Relaxed) {
                return;
            }
            let checked = catch_unwind(AssertUnwindSafe(|| self.check()));
            let checked = checked.unwrap_or_else(|panic| {
                self.trainer.reload_before_next_step();
                self.state.update(|s| s.running = false);
                let reason = panic_message(panic.as_ref());
                Err(TrainingError::Panic(reason.to_owned()))
            });
            let next = match checked {
                Ok(next) => {
                    retry_delay = MIN_RETRY_DELAY;
                    next
                }
                Err(TrainingError::Stopped) => return,
                // A sample was judged again or deleted during the step, so the step was not recorded: repeat it with the
                // samples that are queued now.
                Err(TrainingError::Journal(error @ JournalError::SampleNotQueued { .. })) => {
                    tracing::info!(%error, "repeating the training step");
                    Next::Check
                }
                Err(error) => {
                    tracing::error!(%error, "the training step was not recorded; retrying");
                    self.state
                        .update(|s| s.last_error = Some(error.to_string()));
                    // New samples do not fix such an error, so notifications are ignored.
                    if !self.sleep(retry_delay) {
                        return;
                    }
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                    Next::Check
                }
            };
            let woken = match next {
                Next::Check => Ok(()),
                Next::Wait(None) => self
                    .woken
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Next::Wait(Some(time)) => self.woken.recv_timeout(time),
            };
            if woken == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Runs a step if one is due.
    fn check(&mut self) -> Result<Next, TrainingError> {
        let (next, recorded) = match self.trainer.due(now_ms())? {
            Due::Now => {
                self.state.update(|s| s.running = true);
                let result = self.background.run(|| self.trainer.step_when_due(now_ms()));
                self.state.update(|s| s.running = false);
                match result? {
                    Some(recorded) => (Next::Check, Some(recorded)),
                    // Every queued sample belongs to a group that may still grow: check again after the group wait.
                    None => (Next::Wait(Some(self.trainer.group_wait())), None),
                }
            }
            Due::In(time) => (Next::Wait(Some(time)), None),
            Due::Later => (Next::Wait(None), None),
        };
        let updated = self.update_status(recorded.is_some());
        if let Some(recorded) = recorded {
            report_step(&recorded, &self.state);
        }
        updated.map(|()| next)
    }

    fn update_status(&self, stepped: bool) -> Result<(), TrainingError> {
        let trainer = &self.trainer;
        let queued = trainer.journal().queued_count()?;
        let waits = trainer.wait_reason()?;
        let owners = trainer.journal().adapter_owner_count()?;
        self.state.update(|s| {
            s.queued = queued;
            s.waits = waits;
            s.owners = owners;
            s.version = trainer.version();
            s.owner = trainer.owner().cloned();
            trainer.digest().clone_into(&mut s.digest);
        });
        if stepped {
            self.state.set_stale(trainer.journal().stale_count()?);
        }
        Ok(())
    }

    /// Waits for this time; returns false if the loop must end.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.woken.recv_timeout(left) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

/// Completes when `stop` becomes true or its sender is dropped.
async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, as intended.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn report_step(recorded: &RecordedStep, state: &TrainingState) {
    tracing::info!(step = %recorded.id, outcome = %recorded.outcome, reason = recorded.reason.as_deref().unwrap_or(""), "training step");
    state.update(|s| {
        s.steps += 1;
        s.published += u64::from(recorded.outcome == StepOutcome::Published);
        s.last_outcome = Some(recorded.outcome.to_string());
        s.last_reason.clone_from(&recorded.reason);
        s.last_metrics = Some(recorded.metrics.clone());
        s.last_error = recorded.publish_error.as_ref().map(ToString::to_string);
    });
}
