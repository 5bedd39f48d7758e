//! The record of an episode in the journal: one turn and one sample per token sequence, in one transaction.

use clawhost_chat::{AssistantMessage, Tokenizer};
use clawhost_engine::SamplingParams;
use clawhost_journal::{
    Completion, EpisodeStep, Journal, JournalError, MatchRecord, NewEpisode, NewEpisodeTurn,
    NewTurn, SampleId, SampleProvenance, SessionUpsert, TurnKind, VerdictOutcome, VerdictRecord,
    VerdictSource, VoteRecord, now_ms,
};
use serde_json::Value;

use crate::episode::FinishedEpisode;
use crate::runner::EpisodePlan;
use crate::sequence::SampledSequence;

/// What an episode was run with, for its record.
pub struct EpisodeSource<'a> {
    /// Name of the environment.
    pub environment: &'a str,
    /// sha256 of its component, in hex.
    pub digest: &'a str,
    /// Name of the model.
    pub model: &'a str,
    /// Sampling of every reply.
    pub sampling: &'a SamplingParams,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Factor on the advantages of its samples.
    pub weight: f64,
}

/// Whether an episode of this name is in the journal.
///
/// # Errors
/// Database errors.
pub fn is_recorded(journal: &Journal, plan: &EpisodePlan) -> Result<bool, JournalError> {
    Ok(journal.session(&plan.session())?.is_some())
}

/// Records an episode with its samples, which are queued for training.
///
/// # Errors
/// Database errors, and numbers that are not finite.
pub fn record_episode(
    journal: &Journal,
    source: &EpisodeSource<'_>,
    plan: &EpisodePlan,
    episode: &FinishedEpisode,
) -> Result<Vec<SampleId>, JournalError> {
    let receipts: Vec<Value> = episode
        .receipts
        .iter()
        .filter_map(|receipt| serde_json::to_value(receipt).ok())
        .collect();
    let turns = episode.sequences.iter();
    journal.record_episode(&NewEpisode {
        session: SessionUpsert {
            id: plan.session(),
            name: None,
            origin: "episode".to_owned(),
            key: None,
            user: None,
            ms: episode.started_ms,
        },
        turns: turns
            .map(|sequence| new_turn(source, plan, episode, sequence))
            .collect(),
        reward: episode.reward,
        verdict: verdict(source, episode),
        receipts,
    })
}

fn new_turn(
    source: &EpisodeSource<'_>,
    plan: &EpisodePlan,
    episode: &FinishedEpisode,
    sequence: &SampledSequence,
) -> NewEpisodeTurn {
    let outcome = verdict(source, episode).outcome;
    NewEpisodeTurn {
        turn: NewTurn {
            response_id: format!("episode/{}/{}", plan.id, sequence.step),
            choice: 0,
            group: plan.group.clone(),
            kind: TurnKind::Main,
            parent: None,
            received_ms: episode.started_ms,
            key: None,
            owner: None,
            request_digest: format!("episode/{}", plan.group),
            messages: sequence.messages.clone(),
            tools: sequence.tools.clone(),
            template: serde_json::Map::new(),
            experience: None,
            prompt_ids: sequence.prompt_ids.clone(),
            sampling: source.sampling.clone().into(),
            adapter_version: episode.version,
            adapter_digest: episode.digest.clone(),
            model: source.model.to_owned(),
            matched: MatchRecord {
                reason: format!("environment {}, task {}", source.environment, plan.task.id),
                by: "episode".to_owned(),
                ..MatchRecord::default()
            },
            histories: Vec::new(),
        },
        completion: Completion {
            ms: now_ms(),
            finish: sequence.finish,
            reply: reply(source.tokenizer, sequence),
            anchor: None,
            token_ids: sequence.token_ids.clone(),
            logprobs: sequence.logprobs.clone(),
            full_logprobs: sequence.full_logprobs.clone(),
            forced: sequence.masked.clone(),
        },
        next_state: sequence.next_state.clone(),
        baseline_key: format!("task/{}", plan.task.id),
        step_verdicts: step_verdicts(episode, sequence),
        provenance: SampleProvenance {
            verdicts: vec![VerdictSource {
                source: format!("plugin:{}", source.environment),
                digest: Some(source.digest.to_owned()),
                outcome,
            }],
            components: std::iter::once(source.digest.to_owned())
                .chain(episode.judged.iter().map(|judged| judged.digest.clone()))
                .collect(),
            episode: Some(EpisodeStep {
                trajectory: plan.id.clone(),
                step: sequence.step,
                votes: votes(episode, sequence),
                judged: episode.judged.is_some(),
                weight: source.weight,
            }),
            ..SampleProvenance::default()
        },
    }
}

/// The steps of a sequence.
fn steps(sequence: &SampledSequence) -> std::ops::Range<usize> {
    let first = sequence.step as usize;
    first..first + sequence.replies as usize
}

/// The votes of the step judge on the replies of a sequence; a reply without a vote has none.
fn votes(episode: &FinishedEpisode, sequence: &SampledSequence) -> Vec<f64> {
    let Some(judged) = &episode.judged else {
        return Vec::new();
    };
    let votes = steps(sequence).filter_map(|step| judged.vote(step));
    votes.map(f64::from).collect()
}

/// What the step judge said about the replies of a sequence, in order.
fn step_verdicts(episode: &FinishedEpisode, sequence: &SampledSequence) -> Vec<VerdictRecord> {
    let Some(judged) = &episode.judged else {
        return Vec::new();
    };
    let record = |step: usize| {
        let none = |reason: &str| VerdictOutcome::None {
            reason: format!("step {step}: {reason}"),
        };
        let verdict = judged.verdicts[step].as_ref();
        let outcome = match (verdict, judged.vote(step)) {
            (Ok(_), None) => none("the judge abstained"),
            (Ok(verdict), Some(reward)) => VerdictOutcome::Verdict {
                reward,
                accept: verdict.accept,
            },
            (Err(reason), _) => none(reason),
        };
        let verdict = verdict.ok();
        VerdictRecord {
            source: format!("plugin:{}", judged.judge),
            digest: Some(judged.digest.clone()),
            outcome,
            votes: verdict.map_or_else(Vec::new, |verdict| {
                let votes = verdict.votes.iter();
                votes
                    .map(|vote| {
                        Some(VoteRecord {
                            score: vote.score,
                            rationale: vote.rationale.clone(),
                            votes: None,
                        })
                    })
                    .collect()
            }),
            rationale: verdict.map_or_else(String::new, |verdict| {
                format!("step {step}: {}", verdict.rationale)
            }),
            metrics: verdict.map_or_else(Default::default, |verdict| {
                let metrics = verdict.metrics.iter();
                metrics.map(|one| (one.name.clone(), one.value)).collect()
            }),
            ms: now_ms(),
        }
    };
    steps(sequence).map(record).collect()
}

/// The reply of a sequence; if it has several, all its text with the observations between them.
fn reply(tokenizer: &Tokenizer, sequence: &SampledSequence) -> AssistantMessage {
    match sequence.replies {
        1 => sequence.reply.clone(),
        _ => tokenizer.decode_with_special(&sequence.token_ids).into(),
    }
}

fn verdict(source: &EpisodeSource<'_>, episode: &FinishedEpisode) -> VerdictRecord {
    let metrics = episode.metrics.iter();
    VerdictRecord {
        source: format!("plugin:{}", source.environment),
        digest: Some(source.digest.to_owned()),
        outcome: VerdictOutcome::Verdict {
            reward: episode.reward,
            accept: true,
        },
        votes: Vec::new(),
        rationale: episode.report.clone(),
        metrics: metrics
            .map(|metric| (metric.name.clone(), metric.value))
            .collect(),
        ms: now_ms(),
    }
}
