//! The cells of an evaluation: one server each, several concurrently, each with its own data directory and threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clawhost_evaluation::statistics::mean;
use clawhost_evaluation::{
    About, Arm, ArmEvent, Cell, CellRecord, ChatClient, Endpoint, PersonalizeOptions,
    PersonalizeOutcome, TrainingFacts, run_cell, run_pair,
};
use clawhost_journal::{AdapterOwner, Journal, StepOutcome, StepRecord};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::learning::{adapter_owner, configure, secret};
use crate::arms::{self, DataDir};
use crate::config::Config;
use crate::progress::Progress;
use crate::serve::{Server, Settings};

/// Shared settings of all cells.
pub(super) struct EvalRun {
    /// Configuration of each arm.
    pub(super) configs: BTreeMap<Arm, Config>,
    /// Options of the evaluation.
    pub(super) options: PersonalizeOptions,
    /// Data directories of the servers.
    pub(super) data: DataDir,
    /// Concurrent cells.
    pub(super) jobs: usize,
    /// Facts about the first server that trains, for the report.
    pub(super) served: Mutex<Vec<(String, String)>>,
}

/// Work of the probes relative to the work of the conversations.
const PROBES_SHARE: f64 = 0.3;

/// Runs all cells until they have ended or ctrl-c is pressed; finished cells are kept.
pub(super) async fn run_all(eval: &Arc<EvalRun>) -> PersonalizeOutcome {
    let started = Instant::now();
    let cells = eval.options.cells();
    let total = cells.len();
    let parts = |cell: &Cell| {
        let people = 1 + usize::from(cell.of_other().is_some());
        (people * eval.options.conversations(cell.track)) as f64
    };
    let work: f64 = cells
        .iter()
        .map(|cell| parts(cell) * (1.0 + PROBES_SHARE))
        .sum();
    let mut progress = Progress::new(work);
    let (sender, mut events) = unbounded_channel();
    let (mut records, mut failed) = (Vec::new(), Vec::new());
    let (mut interrupted, mut done) = (false, 0);
    let mut waiting = cells.into_iter();
    let mut running = JoinSet::new();
    let stop = tokio::signal::ctrl_c();
    tokio::pin!(stop);
    let mut latest = format!("0 of {total} arms finished");
    loop {
        while running.len() < eval.jobs
            && let Some(cell) = waiting.next()
        {
            let (eval, sender) = (Arc::clone(eval), sender.clone());
            running.spawn(async move { (cell, run_one(&eval, cell, &sender).await) });
        }
        progress.stage(&latest);
        tokio::select! {
            biased;
            _ = &mut stop => {
                interrupted = true;
                break;
            }
            Some(event) = events.recv() => {
                if let ArmEvent::ConversationFinished { .. } = event {
                    progress.advance(1.0);
                }
            }
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok((cell, Ok(finished)))) => {
                    progress.advance(parts(&cell) * PROBES_SHARE);
                    done += 1;
                    latest = finished_line(&finished, &eval.options, done, total);
                    records.extend(finished);
                }
                Some(Ok((cell, Err(error)))) => {
                    progress.advance(parts(&cell) * (1.0 + PROBES_SHARE));
                    done += 1;
                    tracing::error!(cell = cell.name(), error = format!("{error:#}"), "a cell failed");
                    failed.push(format!("{}: {error:#}", cell.name()));
                }
                Some(Err(error)) => failed.push(format!("a cell failed: {error}")),
            }
        }
    }
    progress.clear();
    running.shutdown().await;
    let seconds = started.elapsed().as_secs_f64();
    PersonalizeOutcome::new(eval.options.clone(), records, failed, interrupted, seconds)
}

/// One line about a finished cell, with the score of each person.
fn finished_line(
    records: &[CellRecord],
    options: &PersonalizeOptions,
    ended: usize,
    total: usize,
) -> String {
    let score = |record: &CellRecord| {
        let window = options.mark_window(record.cell.track);
        let values: Vec<f64> = record
            .arm_record
            .conversations
            .iter()
            .filter(|conversation| window.contains(&conversation.index))
            .filter_map(|conversation| conversation.value())
            .collect();
        mean(&values).map_or_else(|| "–".to_owned(), |score| format!("{score:.2}"))
    };
    let scores: Vec<String> = records.iter().map(score).collect();
    let line = format!("{ended} of {total} arms finished");
    match records.first() {
        None => line,
        Some(first) => format!(
            "{line}; {} with {} in {:.0} s",
            first.cell.name(),
            scores.join(" and "),
            first.arm_record.seconds
        ),
    }
}

async fn run_one(
    eval: &EvalRun,
    cell: Cell,
    events: &UnboundedSender<ArmEvent>,
) -> Result<Vec<CellRecord>> {
    let name = cell.name();
    let mut config = eval.configs[&cell.arm].clone();
    configure(&mut config, cell);
    config.server.data_dir = eval.data.arm_dir(&name);
    let batch = config.training.batch_size as u64;
    let server = Server::start(Settings::from(config.clone()))
        .await
        .context("cannot start the server")?;
    let records = run_conversations(eval, cell, &server, &config, batch, events).await;
    server.stop().await;
    eval.data.finish_arm(&name);
    records
}

async fn run_conversations(
    eval: &EvalRun,
    cell: Cell,
    server: &Server,
    config: &Config,
    batch: u64,
    events: &UnboundedSender<ArmEvent>,
) -> Result<Vec<CellRecord>> {
    let endpoint = arms::endpoint(server);
    let mut served = eval.served.lock().await;
    if served.is_empty() && cell.arm.trains() {
        let client = ChatClient::new(endpoint.clone(), Duration::from_secs(10))?;
        *served = arms::server_facts(server, config, &client.health().await?);
    }
    drop(served);
    let mut options = eval.options.clone();
    options.wait.batch = batch;
    let mut records = match cell.of_other() {
        None => vec![run_cell(cell, endpoint, &options, events).await?],
        Some(other) => {
            let endpoints = [cell, other].map(|cell| Endpoint {
                api_key: Some(secret(cell)),
                ..endpoint.clone()
            });
            run_pair(cell, endpoints, &options, events).await?.into()
        }
    };
    for record in &mut records {
        let (journal, owner) = (server.journal().clone(), adapter_owner(record.cell));
        let facts = tokio::task::spawn_blocking(move || facts(&journal, owner.as_ref()));
        let (steps, facts) = facts.await.context("cannot read the training steps")??;
        // The server reports the steps of all people.
        (record.arm_record.steps, record.training) = (steps, facts);
    }
    Ok(records)
}

/// More steps than any arm runs.
const ALL_STEPS: u32 = 100_000;

/// The number of training steps of an adapter with any outcome, and facts from those that published one.
fn facts(journal: &Journal, owner: Option<&AdapterOwner>) -> Result<(u64, TrainingFacts)> {
    let mut steps = journal.steps(ALL_STEPS)?;
    steps.retain(|step| step.owner.as_ref() == owner);
    let all = steps.len() as u64;
    steps.retain(|step| step.outcome == StepOutcome::Published);
    // The journal returns the newest step first.
    steps.reverse();
    let number = |step: &StepRecord, at: &str| step.metrics.pointer(at).and_then(Value::as_f64);
    let count = |at: &str| -> u64 {
        let counts = steps.iter().map(|step| step.metrics.pointer(at));
        counts.filter_map(|count| count?.as_u64()).sum()
    };
    let gaps = steps.iter().filter_map(|step| number(step, "/parity/mean"));
    let facts = TrainingFacts {
        kl: steps.last().and_then(|step| number(step, "/kl_reference")),
        entropy_first: steps.first().and_then(|step| number(step, "/entropy")),
        entropy_last: steps.last().and_then(|step| number(step, "/entropy")),
        tokens: count("/reply_tokens"),
        rewarded: count("/rewarded"),
        hinted: count("/hinted"),
        served_against_trained: gaps.max_by(f64::total_cmp),
    };
    Ok((all, facts))
}

/// Facts about the run for the report.
pub(super) async fn about(eval: &EvalRun, reproduce: String) -> About {
    About {
        served: eval.served.lock().await.clone(),
        reproduce,
        date: jiff::Timestamp::now().strftime("%F").to_string(),
    }
}
