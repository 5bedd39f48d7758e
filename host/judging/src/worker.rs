//! The judging loop: takes ready turns, judges several concurrently and commits each as it completes.
//!
//! A turn stays ready in the journal until its judgement is committed, so an interrupted turn is judged again after the
//! next start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawhost_config::{ExperienceOptions, JudgingOptions, PluginsConfig};
use clawhost_journal::{Journal, JournalError, JudgingState, TurnId, run_blocking};
use clawhost_plugins::{Plugin, PluginThreads};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::deferred::{DeferredQueue, FinishedJob};
use crate::job::{JobOutcome, JudgeJob};
use crate::panel::JudgePanel;
use crate::session_end;
use crate::slots::{JudgeSet, JudgeSlots};
use crate::status::JudgingStatus;

/// Wait before the journal is retried after a failure; doubles up to [`MAX_RETRY_WAIT`].
const RETRY_WAIT: Duration = Duration::from_millis(200);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);

/// The judging loop.
pub struct JudgeWorker {
    journal: Journal,
    panel: Arc<JudgePanel>,
}

impl JudgeWorker {
    /// Creates the loop. It judges ready turns with all judges among `plugins`, and requests with several complete
    /// choices with the group judges, if there are any; hint extractors see the next states. Check the options with
    /// [`JudgingOptions::validate`] first.
    /// Hints are kept as `experience` says; `config` has the plugins' settings and limits. `threads` are those of the
    /// host of the plugins.
    pub fn new(
        journal: Journal,
        threads: PluginThreads,
        plugins: Vec<Plugin>,
        options: JudgingOptions,
        experience: ExperienceOptions,
        config: PluginsConfig,
    ) -> Self {
        let judges = JudgeSet::from_plugins(plugins);
        Self::with_config(journal, threads, judges, options, experience, config)
    }

    #[cfg(test)]
    pub(crate) fn with(journal: Journal, judges: JudgeSet, options: JudgingOptions) -> Self {
        Self::with_experience(journal, judges, options, ExperienceOptions::default())
    }

    #[cfg(test)]
    pub(crate) fn with_experience(
        journal: Journal,
        judges: JudgeSet,
        options: JudgingOptions,
        experience: ExperienceOptions,
    ) -> Self {
        Self::with_config(
            journal,
            crate::tests::plugin_threads(),
            judges,
            options,
            experience,
            PluginsConfig::default(),
        )
    }

    fn with_config(
        journal: Journal,
        threads: PluginThreads,
        judges: JudgeSet,
        options: JudgingOptions,
        experience: ExperienceOptions,
        plugins: PluginsConfig,
    ) -> Self {
        options.validate().expect("the options were validated");
        let status = JudgingStatus::new();
        Self {
            journal,
            panel: Arc::new(JudgePanel {
                slots: JudgeSlots::new(judges, status.clone()),
                threads,
                options,
                experience,
                plugins,
                status,
            }),
        }
    }

    /// The slots, for replacing components while judging runs.
    pub fn slots(&self) -> JudgeSlots {
        self.panel.slots.clone()
    }

    /// A handle to the status.
    pub fn status(&self) -> JudgingStatus {
        self.panel.status.clone()
    }

    /// Judges until `stop` becomes true or its sender is dropped. Running calls are cancelled then; their turns stay
    /// ready.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { journal, panel } = self;
        let mut changes = journal.watch();
        let mut running: JoinSet<(FinishedJob, JobOutcome)> = JoinSet::new();
        let mut busy: BTreeSet<TurnId> = BTreeSet::new();
        let mut deferred = DeferredQueue::default();
        let mut backlog = Backlog::default();
        let mut finalizer = SessionFinalizer::default();
        let mut retry_wait = RETRY_WAIT;
        loop {
            if *stop.borrow() {
                return;
            }
            changes.mark_unchanged();
            let started = start_ready_jobs(
                &journal,
                &panel,
                &mut running,
                &mut busy,
                &mut deferred,
                &mut backlog,
            );
            let mut failed = match started.await {
                Ok(()) => finalizer
                    .run(&journal, &panel, running.is_empty())
                    .await
                    .err(),
                Err(error) => Some(error),
            };
            if failed.is_none() {
                tokio::select! {
                    () = wait_for_stop(&mut stop) => return,
                    joined = running.join_next(), if !running.is_empty() => {
                        match reap(joined, &mut busy) {
                            Some((_, JobOutcome::Recorded)) => retry_wait = RETRY_WAIT,
                            Some((_, JobOutcome::NotRecorded(error))) => failed = Some(error),
                            Some((done, JobOutcome::Deferred(deferral))) => {
                                tracing::warn!(
                                    turns = ?done.turns,
                                    reason = deferral.reason,
                                    "judgement deferred; it will be retried"
                                );
                                panel.status.update(|s| s.deferred += 1);
                                deferred.push(done, deferral, &panel.options);
                            }
                            Some((_, JobOutcome::Stopped(error))) => {
                                tracing::error!(%error, "judging stopped");
                                panel.status.update(|s| s.stopped = Some(error.to_string()));
                                return;
                            }
                            None => {}
                        }
                    }
                    changed = changes.changed(), if running.len() < panel.options.max_concurrent_turns => {
                        if changed.is_err() {
                            return;
                        }
                    }
                    () = deferred.next_due(), if running.len() < panel.options.max_concurrent_turns => {}
                }
            }
            if let Some(error) = failed {
                tracing::error!(%error, "journal error; retrying");
                panel
                    .status
                    .update(|s| s.last_error = Some(error.to_string()));
                tokio::select! {
                    () = wait_for_stop(&mut stop) => return,
                    () = tokio::time::sleep(retry_wait) => {}
                }
                retry_wait = (retry_wait * 2).min(MAX_RETRY_WAIT);
            }
        }
    }
}

/// Completes when `stop` becomes true or its sender is dropped.
async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // A closed channel stops the loop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Starts ready jobs up to the concurrency limit and updates the number of waiting ones.
async fn start_ready_jobs(
    journal: &Journal,
    panel: &Arc<JudgePanel>,
    running: &mut JoinSet<(FinishedJob, JobOutcome)>,
    busy: &mut BTreeSet<TurnId>,
    deferred: &mut DeferredQueue,
    backlog: &mut Backlog,
) -> Result<(), JournalError> {
    let concurrency = panel.options.max_concurrent_turns;
    // Running and deferred turns are still ready in the journal: read enough to see past them.
    let rows = concurrency + busy.len() + deferred.jobs.len();
    let limit = u32::try_from(rows).expect("a few times the concurrency limit");
    let (read, has_group_judges) = (journal.clone(), panel.slots.has_group_judges());
    let load = move || JudgeJob::load_ready(&read, has_group_judges, limit);
    let (ready, all_seen) = run_blocking(load).await?;
    deferred.remove_stale(&ready);
    let mut waiting = 0;
    for job in ready {
        let turns = job.turns();
        if turns.iter().any(|turn| busy.contains(turn)) {
            continue;
        }
        if running.len() >= concurrency {
            waiting += 1;
            continue;
        }
        let Some(previous) = deferred.take_due(&turns) else {
            waiting += 1;
            continue;
        };
        busy.extend(turns.iter().copied());
        let (journal, panel) = (journal.clone(), panel.clone());
        running.spawn(async move {
            let deferrals = previous.deferrals;
            let outcome = job.run(&journal, &panel, previous).await;
            (FinishedJob { turns, deferrals }, outcome)
        });
    }
    if !all_seen {
        waiting = backlog
            .count(journal)
            .await?
            .saturating_sub(busy.len() as u64);
    }
    panel.status.update(|s| {
        s.running = running.len() as u64;
        s.ready = waiting;
    });
    Ok(())
}

/// The number of ready turns when there are more than one read returns. Counting scans all turns, so it happens at most
/// once a second.
#[derive(Default)]
struct Backlog {
    counted: Option<(Instant, u64)>,
}

impl Backlog {
    async fn count(&mut self, journal: &Journal) -> Result<u64, JournalError> {
        if let Some((at, count)) = self.counted
            && at.elapsed() < Duration::from_secs(1)
        {
            return Ok(count);
        }
        let journal = journal.clone();
        let counts = run_blocking(move || journal.counts()).await?;
        // A state without turns is not listed.
        let count = counts
            .judging
            .get(&JudgingState::Ready)
            .map_or(0, |count| *count);
        self.counted = Some((Instant::now(), count));
        Ok(count)
    }
}

/// Finalizes ended sessions. While turns are judged, every commit wakes the loop, so it looks for ended sessions at
/// most once a second then, and whenever nothing runs.
#[derive(Default)]
struct SessionFinalizer {
    last_run: Option<Instant>,
}

impl SessionFinalizer {
    async fn run(
        &mut self,
        journal: &Journal,
        panel: &Arc<JudgePanel>,
        idle: bool,
    ) -> Result<(), JournalError> {
        if idle
            || self
                .last_run
                .is_none_or(|at| at.elapsed() >= Duration::from_secs(1))
        {
            let (journal, panel) = (journal.clone(), panel.clone());
            run_blocking(move || session_end::finalize_ended_sessions(&journal, &panel)).await?;
            self.last_run = Some(Instant::now());
        }
        Ok(())
    }
}

/// The result of a finished task; none when the task panicked.
fn reap(
    joined: Option<Result<(FinishedJob, JobOutcome), JoinError>>,
    busy: &mut BTreeSet<TurnId>,
) -> Option<(FinishedJob, JobOutcome)> {
    match joined? {
        Ok((done, outcome)) => {
            for turn in &done.turns {
                busy.remove(turn);
            }
            Some((done, outcome))
        }
        Err(error) => {
            // Recording the panic of a job panicked too. Its turns stay in `busy`, so that they are not retried forever.
            tracing::error!(%error, "a judging task panicked; its turns are skipped until the next start");
            None
        }
    }
}
