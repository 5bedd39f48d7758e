//! Logprobs of prompt tokens.

use clawhost_engine::{Candidates, Engine, LoadedVersion, Sequence};
use tokio::sync::Semaphore;

use super::prompt::Prompt;
use crate::error::ApiError;

/// One prompt is scored at a time: scoring competes with replies for the CPU, and replies have priority.
static SCORING: Semaphore = Semaphore::const_new(1);

/// The logprob of a prompt token at temperature 1, given all tokens before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScoredToken {
    pub(super) logprob: f32,
    /// The most likely tokens, in descending order.
    pub(super) top: Vec<(u32, f32)>,
}

/// Scores all tokens of each prompt but the first, which has no context.
pub(super) async fn score(
    engine: &Engine,
    served: &LoadedVersion,
    prompts: &[Prompt],
    top: u8,
) -> Result<Vec<Vec<ScoredToken>>, ApiError> {
    let mut all = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        if prompt.ids.len() < 2 {
            all.push(Vec::new());
            continue;
        }
        let permit = SCORING
            .acquire()
            .await
            .map_err(|error| scoring_error(&error))?;
        let (engine, served, ids) = (engine.clone(), served.clone(), prompt.ids.clone());
        let work = tokio::task::spawn_blocking(move || score_prompt(&engine, &served, &ids, top));
        let scored = work.await.map_err(|error| scoring_error(&error))?;
        drop(permit);
        all.push(scored?);
    }
    Ok(all)
}

fn score_prompt(
    engine: &Engine,
    served: &LoadedVersion,
    ids: &[u32],
    top: u8,
) -> Result<Vec<ScoredToken>, ApiError> {
    let per_token = usize::from(top).min(engine.model().config().vocab_size);
    let sequence = Sequence {
        tokens: ids,
        start: 1,
        temperature: 1.0,
        candidates: match per_token {
            0 => Candidates::None,
            count => Candidates::Top(count),
        },
    };
    let scored = engine.score(served, &[sequence]);
    let scored = scored.map_err(|error| scoring_error(&error))?.pop();
    let scored = scored.ok_or_else(|| scoring_error(&"nothing was scored"))?;
    let mut candidates = scored
        .candidates
        .iter()
        .copied()
        .zip(scored.candidate_logprobs.iter().copied());
    let tokens = scored.logprobs.iter().map(|logprob| ScoredToken {
        logprob: *logprob,
        top: candidates.by_ref().take(per_token).collect(),
    });
    Ok(tokens.collect())
}

fn scoring_error(error: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%error, "cannot score a prompt");
    ApiError::internal(
        "scoring_failed",
        "the prompt could not be scored; see the server log for the cause",
    )
}
