//! The judging loop: takes what is ready, judges several turns at once, commits each as it is done.
//!
//! A turn that is being judged stays ready in the journal until its judgement is committed, so one
//! that was interrupted is judged again after the next start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawhost_journal::{Journal, JournalError, JudgingState, TurnId, TurnRecord, VerdictOutcome};
use clawhost_plugins::Plugin;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::closing;
use crate::docket::Docket;
use crate::judge::Judge;
use crate::judgement::{Bench, Judgement, Stopped};
use crate::options::JudgingOptions;
use crate::seats::Judges;
use crate::status::JudgingStatus;

/// Wait before the journal is asked again after it failed; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Judging, ready to run.
pub struct Judging {
    journal: Journal,
    bench: Arc<Bench>,
}

/// How one turn's judgement ended.
enum Ended {
    Recorded,
    /// The journal could not record it; the turn is still ready.
    NotRecorded(JournalError),
    Stopped(Stopped),
}

impl Judging {
    /// Judges every ready turn of `journal` with all of `judges`. Check the options with
    /// [`JudgingOptions::validate`] first; values that cannot work are brought into range.
    pub fn new(journal: Journal, judges: Vec<Plugin>, options: JudgingOptions) -> Self {
        let judges = judges
            .into_iter()
            .map(|plugin| Arc::new(plugin) as Arc<dyn Judge>)
            .collect();
        Self::with(journal, judges, options)
    }

    pub(crate) fn with(
        journal: Journal,
        judges: Vec<Arc<dyn Judge>>,
        mut options: JudgingOptions,
    ) -> Self {
        options.concurrency = options.concurrency.max(1);
        options.attempts = options.attempts.max(1);
        let status = JudgingStatus::new();
        Self {
            journal,
            bench: Arc::new(Bench {
                judges: Judges::new(judges, status.clone()),
                options,
                status,
            }),
        }
    }

    /// The judges, by which one can be exchanged for another while judging runs.
    pub fn judges(&self) -> Judges {
        self.bench.judges.clone()
    }

    /// A handle that shows what judging is doing.
    pub fn state(&self) -> JudgingStatus {
        self.bench.status.clone()
    }

    /// Judges until `stop` turns true or its sender is gone. Calls in progress are given up then;
    /// their turns stay ready.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { journal, bench } = self;
        let mut changes = journal.watch();
        let mut running: JoinSet<(TurnId, Ended)> = JoinSet::new();
        let mut busy: BTreeSet<TurnId> = BTreeSet::new();
        let mut backlog = Backlog::default();
        let mut endings = Endings::default();
        let mut pause = PAUSE;
        loop {
            if *stop.borrow() {
                return;
            }
            changes.mark_unchanged();
            let mut failed = fill(&journal, &bench, &mut running, &mut busy, &mut backlog)
                .and_then(|()| endings.close(&journal, &bench, running.is_empty()))
                .err();
            if failed.is_none() {
                tokio::select! {
                    () = stopped(&mut stop) => return,
                    joined = running.join_next(), if !running.is_empty() => {
                        match finished(joined, &mut busy) {
                            Some(Ended::Recorded) => pause = PAUSE,
                            Some(Ended::NotRecorded(error)) => failed = Some(error),
                            Some(Ended::Stopped(stopped)) => {
                                tracing::error!(%stopped, "judging has stopped");
                                bench.status.change(|s| s.stopped = Some(stopped.to_string()));
                                return;
                            }
                            None => {}
                        }
                    }
                    changed = changes.changed(), if running.len() < bench.options.concurrency => {
                        if changed.is_err() {
                            return;
                        }
                    }
                }
            }
            if let Some(error) = failed {
                tracing::error!(%error, "the journal failed; trying again");
                bench
                    .status
                    .change(|s| s.last_error = Some(error.to_string()));
                tokio::select! {
                    () = stopped(&mut stop) => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Ends when `stop` turns true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, which is what is wanted.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Starts judging ready turns until as many run as may, and tells how many wait.
fn fill(
    journal: &Journal,
    bench: &Arc<Bench>,
    running: &mut JoinSet<(TurnId, Ended)>,
    busy: &mut BTreeSet<TurnId>,
    backlog: &mut Backlog,
) -> Result<(), JournalError> {
    let most = bench.options.concurrency;
    // Turns in progress are still ready: ask for enough to see past them.
    let limit = most + busy.len();
    let ready = journal.ready_for_judging(u32::try_from(limit).unwrap_or(u32::MAX))?;
    let all_seen = ready.len() < limit;
    let mut waiting = 0;
    for turn in ready {
        if busy.contains(&turn.id) {
            continue;
        }
        if running.len() >= most {
            waiting += 1;
            continue;
        }
        busy.insert(turn.id);
        let (journal, bench) = (journal.clone(), bench.clone());
        running.spawn(async move {
            let id = turn.id;
            (id, one(&journal, &bench, turn).await)
        });
    }
    if !all_seen {
        waiting = backlog.count(journal)?.saturating_sub(busy.len() as u64);
    }
    bench.status.change(|s| {
        s.running = running.len() as u64;
        s.ready = waiting;
    });
    Ok(())
}

/// The number of ready turns when there are more than are read at once. Counting looks at every
/// turn, so it is done at most once a second.
#[derive(Default)]
struct Backlog {
    counted: Option<(Instant, u64)>,
}

impl Backlog {
    fn count(&mut self, journal: &Journal) -> Result<u64, JournalError> {
        if let Some((at, count)) = self.counted
            && at.elapsed() < Duration::from_secs(1)
        {
            return Ok(count);
        }
        let ready = journal.counts()?.judging.get(&JudgingState::Ready).copied();
        let count = ready.unwrap_or(0);
        self.counted = Some((Instant::now(), count));
        Ok(count)
    }
}

/// Sessions that ended. While turns are judged, every commit wakes the loop; looking for ended sessions each time would
/// be most of its work, so it is done at most once a second then, and whenever nothing runs.
#[derive(Default)]
struct Endings {
    looked: Option<Instant>,
}

impl Endings {
    fn close(&mut self, journal: &Journal, bench: &Bench, idle: bool) -> Result<(), JournalError> {
        if idle
            || self
                .looked
                .is_none_or(|at| at.elapsed() >= Duration::from_secs(1))
        {
            closing::close(journal, bench)?;
            self.looked = Some(Instant::now());
        }
        Ok(())
    }
}

/// Judges and records one turn.
async fn one(journal: &Journal, bench: &Bench, turn: TurnRecord) -> Ended {
    let docket = match Docket::of(journal, turn, bench.options.history_turns) {
        Ok(docket) => docket,
        Err(error) => return Ended::NotRecorded(error),
    };
    let judgement = match bench.judge(&docket).await {
        Ok(judgement) => judgement,
        Err(stopped) => return Ended::Stopped(stopped),
    };
    let recorded = journal.commit_judgement(
        &docket.turn,
        &judgement.verdicts,
        judgement.sample.as_ref(),
        judgement.skipped.as_deref(),
        &judgement.receipts,
    );
    match recorded {
        Ok(_) => {
            tell(bench, &judgement);
            Ended::Recorded
        }
        // Forgotten, or judged elsewhere, while it was being judged: there is nothing to record.
        Err(
            error @ (JournalError::AlreadyJudged { .. }
            | JournalError::NotReady { .. }
            | JournalError::UnknownTurn { .. }),
        ) => {
            tracing::info!(turn = %docket.turn.id, %error, "a judgement came too late");
            Ended::Recorded
        }
        Err(error) => Ended::NotRecorded(error),
    }
}

/// What a finished task says; none when it was lost, in which case its turn is taken up again.
fn finished(
    joined: Option<Result<(TurnId, Ended), JoinError>>,
    busy: &mut BTreeSet<TurnId>,
) -> Option<Ended> {
    match joined? {
        Ok((turn, ended)) => {
            busy.remove(&turn);
            Some(ended)
        }
        Err(error) => {
            // Its turn stays in `busy`, so that a turn that breaks the host is not tried for ever.
            tracing::error!(%error, "a judging task broke off; its turn is left for the next start");
            None
        }
    }
}

fn tell(bench: &Bench, judgement: &Judgement) {
    bench.status.change(|s| {
        s.judged += 1;
        s.samples += u64::from(judgement.sample.is_some());
        s.last_error = None;
        if let Some(reason) = &judgement.skipped {
            *s.skipped.entry(reason.clone()).or_default() += 1;
        }
        for verdict in &judgement.verdicts {
            if let VerdictOutcome::None { reason } = &verdict.outcome {
                *s.no_verdict.entry(reason.clone()).or_default() += 1;
            }
        }
    });
}
