//! One episode.
//!
//! **The reward** of an episode is the sum of the rewards of its steps and of the grade, in the order in which the
//! environment gave them. The environment is asked for a grade once, after the last step, however the episode ended.
//!
//! **No verdict is not a reward**: an episode that the infrastructure ended has none. That is a fault or an error of the
//! component, an error of the engine, the wall limit, or a panic. It is counted, and no sample is made of it.

use std::io;
use std::time::Duration;

use clawhost_engine::{Engine, Priority, SamplingParams};
use clawhost_journal::now_ms;
use clawhost_plugins::{
    CallContext, CallResult, EpisodeTask, Message, Metric, Plugin, Progress, Receipt,
};

use crate::artifacts::{Artifacts, ArtifactsRoot};
use crate::dialogue::{Dialogue, SampleUnit};
use crate::seeds::derive;
use crate::sequence::SampledSequence;
use crate::step_judge::{JudgedSteps, StepTrace};
use crate::task::Task;
use crate::window::MIN_LIMIT;

/// Limits and sampling of an episode.
#[derive(Debug, Clone)]
pub struct EpisodeOptions {
    /// Replies after which the episode is cut off and graded.
    pub max_steps: u32,
    /// Wall time after which the episode has no verdict.
    pub wall_limit: Duration,
    /// What becomes one sample.
    pub unit: SampleUnit,
    /// Tokens of a prompt above which its middle is left out: 30 % of what is kept is the beginning, 70 % the end. At least 64.
    /// None, the default: an episode ends when its context is full.
    pub context_tokens: Option<u32>,
    /// Sampling of every reply; the seed is replaced.
    pub sampling: SamplingParams,
    /// Priority of the replies in the engine. Beside the traffic of people it is [`Priority::Training`].
    pub priority: Priority,
    /// Directory below which each episode gets a directory with its transcript, its outcome and its screenshots. Default
    /// none: nothing is kept of an episode except its record.
    pub artifacts: Option<ArtifactsRoot>,
}

impl Default for EpisodeOptions {
    fn default() -> Self {
        Self {
            max_steps: 32,
            wall_limit: Duration::from_secs(600),
            unit: SampleUnit::default(),
            context_tokens: None,
            sampling: SamplingParams::default(),
            priority: Priority::Interactive,
            artifacts: None,
        }
    }
}

/// An episode with a verdict.
#[derive(Debug, Clone)]
pub struct FinishedEpisode {
    /// Sum of the rewards of all steps and of the grade.
    pub reward: f32,
    /// Whether the task was solved: what the environment says, else whether the reward is positive.
    pub success: bool,
    /// The environment's report.
    pub report: String,
    /// Numbers of the grade.
    pub metrics: Vec<Metric>,
    /// Number of replies.
    pub steps: u32,
    /// The token sequences, in order.
    pub sequences: Vec<SampledSequence>,
    /// Number of sampled tokens.
    pub sampled_tokens: usize,
    /// Version that sampled the replies; 0 is the base model.
    pub version: u64,
    /// Digest of that version.
    pub digest: String,
    /// Start, unix milliseconds.
    pub started_ms: i64,
    /// Verdicts on its replies; none if steps are not judged.
    pub judged: Option<JudgedSteps>,
    /// Receipts of all component calls.
    pub receipts: Vec<Receipt>,
}

/// Why an episode has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoVerdict(pub String);

/// The seeds of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpisodeSeeds {
    /// Of the environment: the same for all samples of a task.
    pub(crate) environment: u64,
    /// Of the policy's replies.
    pub(crate) policy: u64,
}

/// Plays one episode with the active version, and returns its replies with what followed them.
pub(crate) async fn run_episode(
    engine: &Engine,
    environment: &Plugin,
    mut call: CallContext,
    task: &Task,
    seeds: EpisodeSeeds,
    options: &EpisodeOptions,
) -> Result<(FinishedEpisode, StepTrace), NoVerdict> {
    let limit = options.wall_limit;
    let mut kept = Kept(None);
    if let Some(root) = &options.artifacts {
        let created = root.create(&call.sample_id, &task.id);
        let artifacts = created.map_err(|error| {
            NoVerdict(format!("cannot keep the artifacts of the episode: {error}"))
        })?;
        call.artifacts = Some(artifacts.dir().to_owned());
        kept = Kept(Some(artifacts));
    }
    let played = play(engine, environment, call, task, seeds, options, &mut kept);
    let result = match tokio::time::timeout(limit, played).await {
        Ok(result) => result,
        Err(_) => Err(format!(
            "the episode was not finished within {} s; raise --wall-limit to allow more",
            limit.as_secs()
        )),
    };
    if let Err(reason) = &result {
        kept.write(|artifacts| artifacts.finish_without_verdict(reason));
    }
    result.map_err(NoVerdict)
}

/// Where the episode is kept, if it is.
struct Kept(Option<Artifacts>);

impl Kept {
    /// Writes a part. The episode goes on without one that cannot be written.
    fn write(&mut self, part: impl FnOnce(&mut Artifacts) -> io::Result<()>) {
        if let Some(artifacts) = &mut self.0
            && let Err(error) = part(artifacts)
        {
            tracing::warn!("cannot write to {}: {error}", artifacts.dir().display());
        }
    }
}

async fn play(
    engine: &Engine,
    environment: &Plugin,
    call: CallContext,
    task: &Task,
    seeds: EpisodeSeeds,
    options: &EpisodeOptions,
    kept: &mut Kept,
) -> Result<(FinishedEpisode, StepTrace), String> {
    let started_ms = now_ms();
    let version = engine.active();
    let (number, digest) = (version.version, version.digest().to_owned());
    let mut receipts = Vec::new();
    let start = environment.start_episode(
        call,
        EpisodeTask {
            id: task.id.clone(),
            instruction: task.instruction.clone(),
            payload: task.payload.clone(),
        },
        seeds.environment,
    );
    let (mut episode, mut observation) = settle("reset", start.await, &mut receipts)?;
    kept.write(|artifacts| artifacts.add(&observation.messages));
    let mut dialogue = Dialogue::new(
        engine,
        version,
        (options.unit, options.priority),
        options
            .context_tokens
            .map(|limit| (limit as usize).max(MIN_LIMIT)),
        started_ms,
    );
    let mut trace = StepTrace::default();
    let mut reward = 0.0;
    let mut steps = 0;
    while steps < options.max_steps {
        dialogue.observe(&observation)?;
        if dialogue.is_full() {
            break;
        }
        let mut sampling = options.sampling.clone();
        sampling.seed = Some(derive(seeds.policy, &["step", &steps.to_string()]));
        let action = Message::from(&dialogue.reply(&sampling).await?);
        steps += 1;
        kept.write(|artifacts| artifacts.add(std::slice::from_ref(&action)));
        let transition = settle("step", episode.step(&action).await, &mut receipts)?;
        kept.write(|artifacts| artifacts.add(&transition.observation.messages));
        trace.push(observation.messages, action, dialogue.is_truncated());
        reward += transition.reward;
        observation = transition.observation;
        trace.follow(&observation.messages);
        if transition.progress != Progress::Running {
            break;
        }
    }
    dialogue.end(&observation);
    let outcome = settle("grade", episode.grade().await, &mut receipts)?;
    // The verdict stands, whatever the environment says about its resources: the host releases them.
    let closed = episode.close().await;
    if let Err(fault) = &closed.outcome {
        tracing::warn!(task = task.id, %fault, "the environment could not close an episode");
    }
    receipts.push(closed.receipt);
    reward += outcome.reward;
    kept.write(|artifacts| artifacts.finish(&outcome, reward, steps));
    let (sequences, sampled_tokens) = dialogue.into_sequences();
    let finished = FinishedEpisode {
        reward,
        success: outcome.success.unwrap_or(reward > 0.0),
        report: outcome.report,
        metrics: outcome.metrics,
        steps,
        // A prompt that filled the context has no reply.
        sequences: sequences
            .into_iter()
            .filter(|sequence| sequence.replies > 0)
            .collect(),
        sampled_tokens,
        version: number,
        digest,
        started_ms,
        judged: None,
        receipts,
    };
    Ok((finished, trace))
}

fn settle<T>(call: &str, result: CallResult<T>, receipts: &mut Vec<Receipt>) -> Result<T, String> {
    receipts.push(result.receipt);
    result
        .outcome
        .map_err(|fault| format!("the environment gave no result of {call}: {fault}"))
}
