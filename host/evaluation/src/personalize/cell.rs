//! One cell: an arm's conversations with one server, and what it can still do afterwards.

use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use super::plan::{Arm, Cell, PersonalizeOptions};
use super::probing::{Probed, probe};
use crate::arms::{ArmEvent, ArmOptions, ArmRecord, run_arm};
use crate::client::{Asking, ChatClient, Endpoint, RequestError};
use crate::settling::SettleError;

/// What a server's trainer wrote down about its own steps. Only who runs the server knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TrainingFacts {
    /// KL from the policy to the base over the tokens of the last step, in nats per token.
    pub kl: Option<f64>,
    /// Entropy of the policy over the tokens of the first step, in nats per token.
    pub entropy_first: Option<f64>,
    /// The same over those of the last step.
    pub entropy_last: Option<f64>,
    /// Tokens of replies that were trained, each step and sample once.
    pub tokens: u64,
    /// Samples with a reward that took part, each step once.
    pub rewarded: u64,
    /// Samples with a hint that a teacher read, each step once.
    pub hinted: u64,
    /// Largest mean difference of a step between the log-probs that were served and those that were trained.
    pub served_against_trained: Option<f64>,
}

/// Everything that happened in one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellRecord {
    /// Which.
    pub cell: Cell,
    /// Its conversations.
    pub talk: ArmRecord,
    /// What the policy did with prompts that were not at stake; empty where none were asked.
    pub probes: Vec<Probed>,
    /// Probe requests that failed.
    pub probe_failures: Vec<String>,
    /// What the trainer wrote down.
    pub training: TrainingFacts,
}

/// Why a cell has no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// Its server did not come to rest between two rounds.
    #[error(transparent)]
    Unsettled(#[from] SettleError),
    /// No client could be made.
    #[error(transparent)]
    Client(#[from] RequestError),
}

/// Holds the conversations of a cell with the server at `endpoint`, then asks it the probes. The trainer's
/// own figures are left for the caller to fill in.
///
/// # Errors
/// [`CellError`] when the server cannot be talked to or does not come to rest between rounds.
pub async fn run_cell(
    cell: Cell,
    endpoint: Endpoint,
    options: &PersonalizeOptions,
    events: &UnboundedSender<ArmEvent>,
) -> Result<CellRecord, CellError> {
    let client = ChatClient::new(endpoint, options.request_limit)?;
    let arm = ArmOptions {
        conversations: options.conversations(cell.track),
        concurrency: options.concurrency,
        manner: options.manner(cell),
        patience: options.patience,
    };
    let persona = cell.track.persona();
    let talk = run_arm(&cell.name(), &client, persona, arm, events).await?;
    let asking = Asking {
        seed: cell.seed,
        temperature: options.temperature,
        max_tokens: None,
    };
    // Each seed asks prompts of its own, the same of all arms. What a memory in front of the frozen policy can
    // do is what the frozen policy can do.
    let at = cell.seed.wrapping_sub(options.first_seed) as usize;
    let count = match cell.arm {
        Arm::Memory => 0,
        _ => options.probes,
    };
    let (probes, probe_failures) = match count {
        0 => (Vec::new(), Vec::new()),
        count => {
            let which = at * count..(at + 1) * count;
            probe(&client, cell.track, which, asking).await
        }
    };
    Ok(CellRecord {
        cell,
        talk,
        probes,
        probe_failures,
        training: TrainingFacts::default(),
    })
}
