//! Log-probs of the tokens of a prompt: what the served version makes of a text that it did not write.

use clawhost_policy::{Candidates, Engine, Sequence, Served};
use tokio::sync::Semaphore;

use super::prompt::Prompt;
use crate::error::ApiError;

/// One prompt is scored at a time: scoring shares the processor with replies, and those are waited for.
static PLACE: Semaphore = Semaphore::const_new(1);

/// A token of a prompt under the model's own distribution, given all tokens before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScoredToken {
    pub(super) logprob: f32,
    /// Likeliest tokens, likeliest first.
    pub(super) top: Vec<(u32, f32)>,
}

/// Scores all tokens of each prompt but the first, which nothing predicts.
pub(super) async fn score(
    engine: &Engine,
    served: &Served,
    prompts: &[Prompt],
    top: u8,
) -> Result<Vec<Vec<ScoredToken>>, ApiError> {
    let mut all = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        if prompt.ids.len() < 2 {
            all.push(Vec::new());
            continue;
        }
        let place = PLACE.acquire().await.map_err(|error| broken(&error))?;
        let (engine, served, ids) = (engine.clone(), served.clone(), prompt.ids.clone());
        let work = tokio::task::spawn_blocking(move || one(&engine, &served, &ids, top));
        let scored = work.await.map_err(|error| broken(&error))?;
        drop(place);
        all.push(scored?);
    }
    Ok(all)
}

fn one(
    engine: &Engine,
    served: &Served,
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
    let scored = served.score(engine.model(), &[sequence]);
    let scored = scored.map_err(|error| broken(&error))?.pop();
    let scored = scored.ok_or_else(|| broken(&"nothing was scored"))?;
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

fn broken(error: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%error, "scoring a prompt failed");
    ApiError::internal(
        "scoring_failed",
        "the prompt could not be scored; the operator finds the reason in the log",
    )
}
