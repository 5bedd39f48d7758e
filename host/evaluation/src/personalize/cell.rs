//! One cell: an arm's conversations with one server, of one person or of two, and the probes afterwards.

use futures_util::future::try_join;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use super::fresh;
use super::plan::{Cell, PersonalizeOptions};
use super::probes::{ProbeResult, probe};
use crate::arms::{ArmEvent, ArmOptions, ArmRecord, memory, run_arm};
use crate::client::{ChatClient, Endpoint, RequestError};
use crate::idle::WaitError;
use crate::scorer::Score;

/// Facts about training that the server's operator reads from its journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TrainingFacts {
    /// KL from the policy before the last step to the base model over the tokens of that step, in nats per token (k3, each
    /// token clamped).
    pub kl: Option<f64>,
    /// Entropy of the policy over the tokens of the first step, in nats per token.
    pub entropy_first: Option<f64>,
    /// Entropy over the tokens of the last step.
    pub entropy_last: Option<f64>,
    /// Reply tokens trained on, counted once per step and sample.
    pub tokens: u64,
    /// Samples with a reward, counted once per step.
    pub rewarded: u64,
    /// Samples with a hint that the teacher scored, counted once per step.
    pub hinted: u64,
    /// Largest mean difference between served and trained log-probs of a step.
    pub served_against_trained: Option<f64>,
}

/// Record of one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellRecord {
    /// The cell.
    pub cell: Cell,
    /// Its conversations.
    pub arm_record: ArmRecord,
    /// Scores of the first replies to fresh tasks after the conversations; `None` without a reply.
    pub fresh: Vec<Option<Score>>,
    /// The same with the adapter of the person who shares the server. Empty for others, and if there is one adapter.
    pub fresh_other: Vec<Option<Score>>,
    /// The same with the base model. Empty for others, and for an arm that does not train.
    pub fresh_base: Vec<Option<Score>>,
    /// Results on unrelated prompts; empty without probes.
    pub probes: Vec<ProbeResult>,
    /// Failed requests of fresh tasks and probes.
    pub probe_failures: Vec<String>,
    /// Facts about training.
    pub training: TrainingFacts,
}

/// Why a cell has no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// Its server did not become idle between two rounds.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The HTTP client could not be created.
    #[error(transparent)]
    Client(#[from] RequestError),
}

/// Runs the conversations of a cell with the server at `endpoint`, then the probes. The caller fills in the training
/// facts.
///
/// # Errors
/// [`CellError`] if the server cannot be reached or does not become idle between rounds.
pub async fn run_cell(
    cell: Cell,
    endpoint: Endpoint,
    options: &PersonalizeOptions,
    events: &UnboundedSender<ArmEvent>,
) -> Result<CellRecord, CellError> {
    let client = ChatClient::new(endpoint, options.request_timeout)?;
    let arm_record = converse(cell, &client, options, events).await?;
    Ok(measure(cell, arm_record, &client, options).await)
}

/// Runs the conversations of two people with opposite wishes at the same time with one server, then measures the fresh
/// tasks of each with the own adapter, with the other's and with the base model, and the probes. `cell` is that of the
/// person with the wish, and `endpoints` are those of this person's API key and of the other's. The caller fills in the
/// training facts.
///
/// # Errors
/// As [`run_cell`].
///
/// # Panics
/// Nobody shares the server of `cell`.
pub async fn run_pair(
    cell: Cell,
    endpoints: [Endpoint; 2],
    options: &PersonalizeOptions,
    events: &UnboundedSender<ArmEvent>,
) -> Result<[CellRecord; 2], CellError> {
    let other = cell.of_other().expect("two people share the server");
    let client = |endpoint| ChatClient::new(endpoint, options.request_timeout);
    // All keys are served the base model by this name.
    let base = client(Endpoint {
        model: format!("{}:base", endpoints[0].model),
        ..endpoints[0].clone()
    })?;
    let [one, two] = endpoints;
    let clients = [client(one)?, client(two)?];
    let (first, second) = try_join(
        converse(cell, &clients[0], options, events),
        converse(other, &clients[1], options, events),
    )
    .await?;
    let mut records = [
        measure(cell, first, &clients[0], options).await,
        measure(other, second, &clients[1], options).await,
    ];
    for (record, other) in records.iter_mut().zip(clients.iter().rev()) {
        if cell.arm.trains() && !cell.arm.has_one_adapter() {
            record.fresh_other = fresh_with(record, other, options).await;
        }
        if cell.arm.trains() {
            record.fresh_base = fresh_with(record, &base, options).await;
        }
    }
    Ok(records)
}

async fn converse(
    cell: Cell,
    client: &ChatClient,
    options: &PersonalizeOptions,
    events: &UnboundedSender<ArmEvent>,
) -> Result<ArmRecord, WaitError> {
    let arm = ArmOptions {
        conversations: options.conversations(cell.track),
        concurrency: options.concurrency,
        conversation: options.conversation_options(cell),
        wait: options.wait,
    };
    let persona = cell.track.persona();
    run_arm(&cell.name(), client, persona.as_ref(), arm, events).await
}

/// Scores fresh tasks and probes after the conversations.
async fn measure(
    cell: Cell,
    arm_record: ArmRecord,
    client: &ChatClient,
    options: &PersonalizeOptions,
) -> CellRecord {
    let memory_size = options.conversation_options(cell).memory_size;
    let memory = memory(&arm_record.conversations, memory_size);
    let memory = memory.as_deref();
    let persona = cell.track.persona();
    let (fresh, mut failures) =
        fresh::score_fresh(client, persona.as_ref(), cell, memory, options).await;
    // Each seed has its own probe prompts, the same for all arms.
    let at = cell.seed.wrapping_sub(options.first_seed) as usize;
    let which = at * options.probes..(at + 1) * options.probes;
    let (probes, probe_failures) = probe(client, cell, which, memory, options).await;
    failures.extend(probe_failures);
    CellRecord {
        cell,
        arm_record,
        fresh,
        fresh_other: Vec::new(),
        fresh_base: Vec::new(),
        probes,
        probe_failures: failures,
        training: TrainingFacts::default(),
    }
}

/// Scores the fresh tasks of a person with another adapter; failed requests are added to the record.
async fn fresh_with(
    record: &mut CellRecord,
    client: &ChatClient,
    options: &PersonalizeOptions,
) -> Vec<Option<Score>> {
    let cell = record.cell;
    let persona = cell.track.persona();
    let (scores, failures) =
        fresh::score_fresh(client, persona.as_ref(), cell, None, options).await;
    record.probe_failures.extend(failures);
    scores
}
