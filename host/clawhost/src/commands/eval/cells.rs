//! The cells of an evaluation: one server each, several at a time, each with data and threads of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clawhost_evaluation::statistics::mean;
use clawhost_evaluation::{
    About, ArmEvent, Cell, CellRecord, ChatClient, PersonalizeOptions, PersonalizeOutcome,
    TrainingFacts, run_cell,
};
use clawhost_journal::{Journal, StepOutcome, StepRecord};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::learning::configure;
use crate::arms::{self, Data};
use crate::config::Config;
use crate::progress::Progress;
use crate::serve::{Server, Settings};

/// What all cells share.
pub(super) struct Bench {
    /// The configuration that each arm changes for itself.
    pub(super) config: Config,
    /// What is run.
    pub(super) options: PersonalizeOptions,
    /// Where the servers keep their data.
    pub(super) data: Data,
    /// How many run at the same time.
    pub(super) jobs: usize,
    /// What the report says about the first server that learns.
    pub(super) served: Mutex<Vec<(String, String)>>,
}

/// Asking the probes is about so much of the work of a cell's conversations.
const PROBES_SHARE: f64 = 0.3;

/// Runs all cells until they have ended or somebody presses ctrl-c; what has ended by then is kept.
pub(super) async fn run_all(bench: &Arc<Bench>) -> PersonalizeOutcome {
    let begun = Instant::now();
    let cells = bench.options.cells();
    let all = cells.len();
    let parts = |cell: &Cell| bench.options.conversations(cell.track) as f64;
    let work: f64 = cells
        .iter()
        .map(|cell| parts(cell) * (1.0 + PROBES_SHARE))
        .sum();
    let mut progress = Progress::new(work);
    let (sender, mut events) = unbounded_channel();
    let (mut records, mut failed) = (Vec::new(), Vec::new());
    let mut interrupted = false;
    let mut waiting = cells.into_iter();
    let mut running = JoinSet::new();
    let stop = tokio::signal::ctrl_c();
    tokio::pin!(stop);
    let mut latest = format!("0 of {all} arms have ended");
    loop {
        while running.len() < bench.jobs
            && let Some(cell) = waiting.next()
        {
            let (bench, sender) = (Arc::clone(bench), sender.clone());
            running.spawn(async move { (cell, one(&bench, cell, &sender).await) });
        }
        progress.stage(&latest);
        tokio::select! {
            biased;
            _ = &mut stop => {
                interrupted = true;
                break;
            }
            Some(event) = events.recv() => {
                if let ArmEvent::Ended { .. } = event {
                    progress.done(1.0);
                }
            }
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok((cell, Ok(record)))) => {
                    progress.done(parts(&cell) * PROBES_SHARE);
                    latest = told(&record, &bench.options, records.len() + failed.len() + 1, all);
                    records.push(record);
                }
                Some(Ok((cell, Err(error)))) => {
                    progress.done(parts(&cell) * (1.0 + PROBES_SHARE));
                    tracing::error!(cell = cell.name(), error = format!("{error:#}"), "a cell broke off");
                    failed.push(format!("{}: {error:#}", cell.name()));
                }
                Some(Err(error)) => failed.push(format!("a cell broke off: {error}")),
            }
        }
    }
    progress.end();
    running.shutdown().await;
    let seconds = begun.elapsed().as_secs_f64();
    PersonalizeOutcome::new(bench.options.clone(), records, failed, interrupted, seconds)
}

/// One line about a cell that has just ended.
fn told(record: &CellRecord, options: &PersonalizeOptions, ended: usize, all: usize) -> String {
    let window = options.mark_window(record.cell.track);
    let values: Vec<f64> = record
        .talk
        .conversations
        .iter()
        .filter(|conversation| window.contains(&conversation.index))
        .filter_map(|conversation| conversation.value())
        .collect();
    let score = mean(&values).map_or_else(|| "–".to_owned(), |score| format!("{score:.2}"));
    format!(
        "{ended} of {all} arms have ended; {} with {score} in {:.0} s",
        record.cell.name(),
        record.talk.seconds
    )
}

async fn one(bench: &Bench, cell: Cell, events: &UnboundedSender<ArmEvent>) -> Result<CellRecord> {
    let name = cell.name();
    let mut config = bench.config.clone();
    configure(&mut config, cell.arm, cell.seed);
    config.server.data = bench.data.of(&name);
    let batch = config.training.batch as u64;
    let server = Server::start(Settings::from(config.clone()))
        .await
        .context("the server did not start")?;
    let record = talk(bench, cell, &server, &config, batch, events).await;
    server.stop().await;
    bench.data.over(&name);
    record
}

async fn talk(
    bench: &Bench,
    cell: Cell,
    server: &Server,
    config: &Config,
    batch: u64,
    events: &UnboundedSender<ArmEvent>,
) -> Result<CellRecord> {
    let endpoint = arms::endpoint(server);
    let mut served = bench.served.lock().await;
    if served.is_empty() && cell.arm.learns() {
        let client = ChatClient::new(endpoint.clone(), Duration::from_secs(10))?;
        *served = arms::served(server, config, &client.health().await?);
    }
    drop(served);
    let mut options = bench.options.clone();
    options.patience.batch = batch;
    let mut record = run_cell(cell, endpoint, &options, events).await?;
    let journal = server.journal().clone();
    let facts = tokio::task::spawn_blocking(move || facts(&journal));
    record.training = facts.await.context("reading the steps broke off")??;
    Ok(record)
}

/// More steps than any arm makes.
const ALL_STEPS: u32 = 100_000;

/// What the trainer wrote down about its steps.
fn facts(journal: &Journal) -> Result<TrainingFacts> {
    let mut steps = journal.steps(ALL_STEPS)?;
    steps.retain(|step| step.outcome == StepOutcome::Published);
    // The journal tells the newest first.
    steps.reverse();
    let number = |step: &StepRecord, at: &str| step.metrics.pointer(at).and_then(Value::as_f64);
    let count = |at: &str| -> u64 {
        let counts = steps.iter().map(|step| step.metrics.pointer(at));
        counts.filter_map(|count| count?.as_u64()).sum()
    };
    let gaps = steps.iter().filter_map(|step| number(step, "/parity/mean"));
    Ok(TrainingFacts {
        kl: steps.last().and_then(|step| number(step, "/kl_reference")),
        entropy_first: steps.first().and_then(|step| number(step, "/entropy")),
        entropy_last: steps.last().and_then(|step| number(step, "/entropy")),
        tokens: count("/reply_tokens"),
        rewarded: count("/rewarded"),
        hinted: count("/hinted"),
        served_against_trained: gaps.max_by(f64::total_cmp),
    })
}

/// What the report says about what was run.
pub(super) async fn about(bench: &Bench, reproduce: String) -> About {
    About {
        served: bench.served.lock().await.clone(),
        reproduce,
        date: crate::calendar::today(),
    }
}
