//! The training loop: waits until a batch is full or its oldest sample has waited long enough, runs a step on a dedicated
//! thread, and continues whatever the step's outcome.
//!
//! A journal notification wakes the loop; whether a step is due depends only on the journal's content.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clawhost_journal::{Journal, JournalError, StepOutcome, now_ms};
use clawhost_policy::{BackgroundWork, Engine};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::component::Components;
use crate::distillation::RemoteTeacher;
use crate::error::TrainingError;
use crate::options::TrainingOptions;
use crate::publisher::AdapterPublisher;
use crate::state::{TrainingSnapshot, TrainingState};
use crate::trainer::{Due, RecordedStep, Trainer};

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
            digest: trainer.digest().to_owned(),
            last_metrics: trainer.journal().steps(1)?.pop().map(|step| step.metrics),
            ..TrainingSnapshot::default()
        });
        state.set_stale(trainer.journal().stale_count()?);
        Ok(Self { trainer, state })
    }

    /// Sets the teacher that scores replies when `training.teacher.from` is `endpoint`.
    #[must_use]
    pub fn with_teacher(mut self, teacher: Option<Arc<dyn RemoteTeacher>>) -> Self {
        self.trainer.teacher = teacher;
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
        let mut slot = Some(trainer);
        let mut retry_delay = MIN_RETRY_DELAY;
        while let Some(trainer) = slot.take() {
            if *stop.borrow() {
                break;
            }
            changes.mark_unchanged();
            let attempt = match trainer.due(now_ms()) {
                Ok(Due::Now) => {
                    state.update(|s| s.running = true);
                    let (back, result) = step(trainer, &mut stop).await;
                    state.update(|s| s.running = false);
                    match back {
                        Some(trainer) => slot = Some(trainer),
                        None => {
                            let error = result.err().map(|e| e.to_string());
                            tracing::error!(?error, "training stopped");
                            state.update(|s| s.last_error = error);
                            break;
                        }
                    }
                    result
                }
                Ok(due) => {
                    slot = Some(trainer);
                    Ok(Attempt::Wait(match due {
                        Due::In(time) => Some(time),
                        Due::Now | Due::Later => None,
                    }))
                }
                Err(error) => {
                    slot = Some(trainer);
                    Err(error)
                }
            };
            if let Some(trainer) = &slot {
                update_state(trainer, &state);
            }
            let wait = match attempt {
                Ok(Attempt::Recorded(recorded)) => {
                    retry_delay = MIN_RETRY_DELAY;
                    if let Some(Ok(count)) = slot.as_ref().map(|t| t.journal().stale_count()) {
                        state.set_stale(count);
                    }
                    log_step(&recorded, &state);
                    continue;
                }
                Ok(Attempt::Wait(wait)) => wait,
                Err(TrainingError::Stopped) => break,
                // A sample was judged again or deleted during the step, so the step was not recorded: repeat it with the
                // samples that are queued now.
                Err(TrainingError::Journal(error @ JournalError::SampleNotQueued { .. })) => {
                    tracing::info!(%error, "repeating the training step");
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "the training step was not recorded; retrying");
                    state.update(|s| s.last_error = Some(error.to_string()));
                    let wait = retry_delay;
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                    // New samples do not fix such an error, so the journal's notifications are ignored here.
                    tokio::select! {
                        _ = wait_for_stop(&mut stop) => break,
                        () = tokio::time::sleep(wait) => continue,
                    }
                }
            };
            tokio::select! {
                _ = wait_for_stop(&mut stop) => break,
                changed = changes.changed() => if changed.is_err() { break },
                () = sleep_or_forever(wait) => {}
            }
        }
    }
}

/// Result of one iteration of the loop.
enum Attempt {
    Recorded(RecordedStep),
    Wait(Option<Duration>),
}

/// Runs a step on a dedicated thread and aborts it when `stop` becomes true. Returns the trainer unless the thread
/// panicked.
async fn step(
    trainer: Trainer,
    stop: &mut watch::Receiver<bool>,
) -> (Option<Trainer>, Result<Attempt, TrainingError>) {
    let flag = trainer.stop.clone();
    let options = &trainer.options;
    let background = BackgroundWork::new(&trainer.engine, options.nice, options.busy_share);
    let (sender, mut receiver) = oneshot::channel();
    let work = {
        let (background, runtime) = (background.clone(), Handle::current());
        let mut trainer = trainer;
        move || {
            // The step calls components, which need the runtime.
            let _context = runtime.enter();
            let result = background.run(|| trainer.step(now_ms()));
            // The receiver is dropped only when the runtime shuts down.
            let _closed = sender.send((trainer, result));
        }
    };
    // Not a thread of the runtime's pool, because it keeps its low priority.
    let named = std::thread::Builder::new().name("clawhost-training".to_owned());
    let thread = match named.spawn(work) {
        Ok(thread) => thread,
        Err(error) => return (None, Err(TrainingError::Thread(error.to_string()))),
    };
    let received = tokio::select! {
        received = &mut receiver => received,
        () = wait_for_stop(stop) => {
            flag.store(true, Ordering::Relaxed);
            background.stop_yielding();
            receiver.await
        }
    };
    let joined = received.map_err(|_| match thread.join() {
        Ok(()) => "it ended without a result".to_owned(),
        Err(panic) => panic_message(panic.as_ref()).to_owned(),
    });
    match joined {
        Ok((trainer, Ok(Some(recorded)))) => (Some(trainer), Ok(Attempt::Recorded(recorded))),
        // Every queued sample belongs to a group that may still grow: check again after the group wait.
        Ok((trainer, Ok(None))) => {
            let wait = trainer.group_wait();
            (Some(trainer), Ok(Attempt::Wait(Some(wait))))
        }
        Ok((trainer, Err(error))) => (Some(trainer), Err(error)),
        Err(reason) => (None, Err(TrainingError::Thread(reason))),
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Completes when `stop` becomes true or its sender is dropped.
async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, as intended.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn sleep_or_forever(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

fn update_state(trainer: &Trainer, state: &TrainingState) {
    let queued = trainer.journal().queued_count();
    let waits = trainer.publisher.wait_reason().unwrap_or_default();
    state.update(|s| {
        s.waits = waits;
        if let Ok(queued) = queued {
            s.queued = queued;
        }
        s.version = trainer.version();
        trainer.digest().clone_into(&mut s.digest);
    });
}

fn log_step(recorded: &RecordedStep, state: &TrainingState) {
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
