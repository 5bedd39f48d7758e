//! One cell: an arm's conversations with one server, and the probes afterwards.

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
    let arm = ArmOptions {
        conversations: options.conversations(cell.track),
        concurrency: options.concurrency,
        conversation: options.conversation_options(cell),
        wait: options.wait,
    };
    let persona = cell.track.persona();
    let arm_record = run_arm(&cell.name(), &client, persona.as_ref(), arm, events).await?;
    let memory = memory(&arm_record.conversations, arm.conversation.memory_size);
    let memory = memory.as_deref();
    let (fresh, mut failures) =
        fresh::score_fresh(&client, persona.as_ref(), cell, memory, options).await;
    // Each seed has its own probe prompts, the same for all arms.
    let at = cell.seed.wrapping_sub(options.first_seed) as usize;
    let which = at * options.probes..(at + 1) * options.probes;
    let (probes, probe_failures) = probe(&client, cell, which, memory, options).await;
    failures.extend(probe_failures);
    Ok(CellRecord {
        cell,
        arm_record,
        fresh,
        probes,
        probe_failures: failures,
        training: TrainingFacts::default(),
    })
}
