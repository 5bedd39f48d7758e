//! The training loop: waits until a batch is full or has waited long enough, steps on a thread of
//! its own, and goes on whatever a step came to.
//!
//! The journal's notification makes it prompt; what it does is decided by what the journal holds.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clawhost_journal::{Journal, JournalError, StepOutcome, now_ms};
use clawhost_policy::{Background, Engine};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::component::Components;
use crate::error::TrainingError;
use crate::options::TrainingOptions;
use crate::releases::Releases;
use crate::state::{TrainingSnapshot, TrainingState};
use crate::teaching::Teacher;
use crate::trainer::{Due, Recorded, Trainer};

/// First wait after a step that could not be recorded; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Training, ready to run.
pub struct Training {
    trainer: Trainer,
    state: TrainingState,
}

impl Training {
    /// Takes up where the journal stands: loads the active adapter and the optimizer's state from
    /// `data`/adapters, moves what no step recorded to `adapters/unknown/`, and publishes the adapter to the engine.
    ///
    /// # Errors
    /// An option that cannot work, a checkpoint that is not what the journal recorded, or a data
    /// directory or journal that cannot be read.
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
        state.show_stale(trainer.journal().stale_count()?);
        Ok(Self { trainer, state })
    }

    /// Lets this teacher read hints where `training.teacher.from` is `endpoint`.
    #[must_use]
    pub fn taught_by(mut self, teacher: Option<Arc<dyn Teacher>>) -> Self {
        self.trainer.teacher = teacher;
        self
    }

    /// A handle that shows what training is doing.
    pub fn state(&self) -> TrainingState {
        self.state.clone()
    }

    /// A handle that changes which version is served, beside training.
    pub fn releases(&self) -> Releases {
        self.trainer.releases.clone()
    }

    /// Trains until `stop` turns true or its sender is gone. A step in progress is given up between
    /// two passes; nothing of it is recorded.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { trainer, state } = self;
        let mut changes = trainer.journal().watch();
        let mut slot = Some(trainer);
        let mut pause = PAUSE;
        while let Some(trainer) = slot.take() {
            if *stop.borrow() {
                break;
            }
            changes.mark_unchanged();
            let attempt = match trainer.due(now_ms()) {
                Ok(Due::Now) => {
                    state.change(|s| s.running = true);
                    let (back, result) = step(trainer, &mut stop).await;
                    state.change(|s| s.running = false);
                    match back {
                        Some(trainer) => slot = Some(trainer),
                        None => {
                            let error = result.err().map(|e| e.to_string());
                            tracing::error!(?error, "training has ended");
                            state.change(|s| s.last_error = error);
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
                show(trainer, &state);
            }
            let wait = match attempt {
                Ok(Attempt::Recorded(recorded)) => {
                    pause = PAUSE;
                    if let Some(Ok(count)) = slot.as_ref().map(|t| t.journal().stale_count()) {
                        state.show_stale(count);
                    }
                    tell(&recorded, &state);
                    continue;
                }
                Ok(Attempt::Wait(wait)) => wait,
                Err(TrainingError::Stopped) => break,
                // A sample was judged again or forgotten during the step, so it was not recorded:
                // what is queued now is taken instead.
                Err(TrainingError::Journal(error @ JournalError::SampleNotQueued { .. })) => {
                    tracing::info!(%error, "the step is repeated");
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "no step could be recorded; trying again");
                    state.change(|s| s.last_error = Some(error.to_string()));
                    let wait = pause;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    // What keeps a step from being recorded is seldom mended by another sample.
                    tokio::select! {
                        _ = stopped(&mut stop) => break,
                        () = tokio::time::sleep(wait) => continue,
                    }
                }
            };
            tokio::select! {
                _ = stopped(&mut stop) => break,
                changed = changes.changed() => if changed.is_err() { break },
                () = sleep(wait) => {}
            }
        }
    }
}

/// What one round of the loop came to.
enum Attempt {
    Recorded(Recorded),
    Wait(Option<Duration>),
}

/// A step on a thread of its own, given up when `stop` turns true. The trainer comes back, unless
/// the thread broke off.
async fn step(
    trainer: Trainer,
    stop: &mut watch::Receiver<bool>,
) -> (Option<Trainer>, Result<Attempt, TrainingError>) {
    let flag = trainer.stop.clone();
    let options = &trainer.options;
    let background = Background::new(&trainer.engine, options.nice, options.busy_share);
    let (sender, mut receiver) = oneshot::channel();
    let work = {
        let (background, runtime) = (background.clone(), Handle::current());
        let mut trainer = trainer;
        move || {
            // Components are called on the runtime.
            let _context = runtime.enter();
            let result = background.run(|| trainer.step(now_ms()));
            // Whoever waited is gone only when the runtime is.
            let _gone = sender.send((trainer, result));
        }
    };
    // Not one of the runtime's: it keeps its low priority.
    let named = std::thread::Builder::new().name("clawhost-training".to_owned());
    let thread = match named.spawn(work) {
        Ok(thread) => thread,
        Err(error) => return (None, Err(TrainingError::Thread(error.to_string()))),
    };
    let received = tokio::select! {
        received = &mut receiver => received,
        () = stopped(stop) => {
            flag.store(true, Ordering::Relaxed);
            background.hurry();
            receiver.await
        }
    };
    let joined = received.map_err(|_| match thread.join() {
        Ok(()) => "it ended without a result".to_owned(),
        Err(panic) => message(panic.as_ref()).to_owned(),
    });
    match joined {
        Ok((trainer, Ok(Some(recorded)))) => (Some(trainer), Ok(Attempt::Recorded(recorded))),
        // Every queued sample belongs to a group that may still grow: look again soon.
        Ok((trainer, Ok(None))) => {
            let wait = trainer.group_wait();
            (Some(trainer), Ok(Attempt::Wait(Some(wait))))
        }
        Ok((trainer, Err(error))) => (Some(trainer), Err(error)),
        Err(reason) => (None, Err(TrainingError::Thread(reason))),
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Ends when `stop` turns true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, which is what is wanted.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

fn show(trainer: &Trainer, state: &TrainingState) {
    let queued = trainer.journal().queued_count();
    let waits = trainer.releases.waits().unwrap_or_default();
    state.change(|s| {
        s.waits = waits;
        if let Ok(queued) = queued {
            s.queued = queued;
        }
        s.version = trainer.version();
        trainer.digest().clone_into(&mut s.digest);
    });
}

fn tell(recorded: &Recorded, state: &TrainingState) {
    tracing::info!(step = %recorded.id, outcome = %recorded.outcome, reason = recorded.reason.as_deref().unwrap_or(""), "training step");
    state.change(|s| {
        s.steps += 1;
        s.published += u64::from(recorded.outcome == StepOutcome::Published);
        s.last_outcome = Some(recorded.outcome.to_string());
        s.last_reason.clone_from(&recorded.reason);
        s.last_metrics = Some(recorded.metrics.clone());
        s.last_error = recorded.unserved.as_ref().map(ToString::to_string);
    });
}
