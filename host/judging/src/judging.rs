//! The judging loop: takes what is ready, judges several pieces of it at once, commits each as it is done.
//!
//! A turn that is being judged stays ready in the journal until its judgement is committed, so one
//! that was interrupted is judged again after the next start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawhost_journal::{Journal, JournalError, JudgingState, TurnId};
use clawhost_plugins::Plugin;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::closing;
use crate::judgement::Bench;
use crate::options::JudgingOptions;
use crate::postponed::{Done, Postponed};
use crate::seats::{Seated, Seats};
use crate::status::JudgingStatus;
use crate::work::{Ended, Work};

/// Wait before the journal is asked again after it failed; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Judging, ready to run.
pub struct Judging {
    journal: Journal,
    bench: Arc<Bench>,
}

impl Judging {
    /// Judges what is ready in `journal`: turns with all judges among `plugins`, requests of several whole choices
    /// with all group judges, if there are any; hint extractors are shown what follows. Check the options with
    /// [`JudgingOptions::validate`] first; values that cannot work are brought into range.
    pub fn new(journal: Journal, plugins: Vec<Plugin>, options: JudgingOptions) -> Self {
        Self::with(journal, Seated::of(plugins), options)
    }

    pub(crate) fn with(journal: Journal, seated: Seated, mut options: JudgingOptions) -> Self {
        options.concurrency = options.concurrency.max(1);
        options.attempts = options.attempts.max(1);
        let status = JudgingStatus::new();
        Self {
            journal,
            bench: Arc::new(Bench {
                seats: Seats::new(seated, status.clone()),
                options,
                status,
            }),
        }
    }

    /// The seats, by which one component can be exchanged for another while judging runs.
    pub fn seats(&self) -> Seats {
        self.bench.seats.clone()
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
        let mut running: JoinSet<(Done, Ended)> = JoinSet::new();
        let mut busy: BTreeSet<TurnId> = BTreeSet::new();
        let mut postponed = Postponed::default();
        let mut backlog = Backlog::default();
        let mut endings = Endings::default();
        let mut pause = PAUSE;
        loop {
            if *stop.borrow() {
                return;
            }
            changes.mark_unchanged();
            let mut failed = fill(
                &journal,
                &bench,
                &mut running,
                &mut busy,
                &mut postponed,
                &mut backlog,
            )
            .and_then(|()| endings.close(&journal, &bench, running.is_empty()))
            .err();
            if failed.is_none() {
                tokio::select! {
                    () = stopped(&mut stop) => return,
                    joined = running.join_next(), if !running.is_empty() => {
                        match finished(joined, &mut busy) {
                            Some((_, Ended::Recorded)) => pause = PAUSE,
                            Some((_, Ended::NotRecorded(error))) => failed = Some(error),
                            Some((done, Ended::Deferred(deferred))) => {
                                tracing::warn!(
                                    turns = ?done.turns,
                                    reason = deferred.reason,
                                    "a judgement is put off; it is tried again"
                                );
                                bench.status.change(|s| s.deferred += 1);
                                postponed.put_off(done, deferred, &bench.options);
                            }
                            Some((_, Ended::Stopped(stopped))) => {
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
                    () = postponed.next_due(), if running.len() < bench.options.concurrency => {}
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

/// Starts judging what is ready until as much runs as may, and tells how much waits.
fn fill(
    journal: &Journal,
    bench: &Arc<Bench>,
    running: &mut JoinSet<(Done, Ended)>,
    busy: &mut BTreeSet<TurnId>,
    postponed: &mut Postponed,
    backlog: &mut Backlog,
) -> Result<(), JournalError> {
    let most = bench.options.concurrency;
    // What is in progress, or put off, is still ready: ask for enough to see past it.
    let seen = most + busy.len() + postponed.works.len();
    let limit = u32::try_from(seen).unwrap_or(u32::MAX);
    let (ready, all_seen) = Work::ready(journal, bench, limit)?;
    postponed.forget_gone(&ready);
    let mut waiting = 0;
    for work in ready {
        let turns = work.turns();
        if turns.iter().any(|turn| busy.contains(turn)) {
            continue;
        }
        if running.len() >= most {
            waiting += 1;
            continue;
        }
        let Some(earlier) = postponed.take_due(&turns) else {
            waiting += 1;
            continue;
        };
        busy.extend(turns.iter().copied());
        let (journal, bench) = (journal.clone(), bench.clone());
        running.spawn(async move {
            let deferrals = earlier.deferrals;
            let ended = work.done(&journal, &bench, earlier).await;
            (Done { turns, deferrals }, ended)
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

/// What a finished task says; none when it was lost.
fn finished(
    joined: Option<Result<(Done, Ended), JoinError>>,
    busy: &mut BTreeSet<TurnId>,
) -> Option<(Done, Ended)> {
    match joined? {
        Ok((done, ended)) => {
            for turn in &done.turns {
                busy.remove(turn);
            }
            Some((done, ended))
        }
        Err(error) => {
            // Its turns stay in `busy`, so that one that breaks the host is not tried for ever.
            tracing::error!(%error, "a judging task broke off; its turns are left for the next start");
            None
        }
    }
}
