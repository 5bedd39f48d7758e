//! Proof that the serving engine gives what was trained: recorded replies of the batch are replayed under the
//! candidate before it is published.
//!
//! [`prove`](crate::proof::prove) compares two passes of the training code. This compares with the path that
//! people are served by: adapter loading, batching, chunked prefill, KV cache and prefix cache.

use clawhost_policy::{Engine, NotReplayed, Replay, Served};
use serde::Serialize;

use crate::batch::Chosen;
use crate::loss::Mismatch;
use crate::packing::Laid;

/// Samples of a batch that are replayed, where it has as many.
pub(crate) const REPLAYED: usize = 2;

/// Most tokens of a reply that are replayed: every decode step shares the engine with people.
const TOKENS: usize = 64;

/// What the engine computed for replies that it had sampled before, under the new version.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EngineProof {
    /// Samples that were replayed.
    pub samples: usize,
    /// Tokens that were decoded and compared; those of the second pass count again.
    pub tokens: usize,
    /// Tokens that the second pass took from the prefix cache.
    pub cached_tokens: usize,
    /// Mean |engine − trained| log-prob.
    pub mean: f64,
    /// Largest |engine − trained| log-prob.
    pub max: f64,
}

/// Whether the engine has room for this sample's prompt and one token.
pub(crate) fn fits(engine: &Engine, chosen: &Chosen) -> bool {
    !chosen.sample.token_ids.is_empty() && chosen.sample.prompt_ids.len() < engine.room()
}

/// Replays samples through the engine under a version that is loaded and need not be active. `trained` are the
/// trainer's log-probs of each sample's reply under the same version.
///
/// All samples are decoded together first. The second pass decodes only the last quarter of each reply, so that it
/// goes on from blocks of the prefix cache.
pub(crate) fn replay(
    engine: &Engine,
    candidate: &Served,
    samples: &[(&Chosen, &[f32])],
) -> Result<EngineProof, NotReplayed> {
    let mut proof = EngineProof {
        samples: samples.len(),
        ..EngineProof::default()
    };
    let mut mismatch = Mismatch::default();
    for again in [false, true] {
        let passes: Vec<(Replay, &[f32])> = samples
            .iter()
            .filter_map(|(chosen, trained)| portion(engine, chosen, trained, again))
            .collect();
        let replays: Vec<Replay> = passes.iter().map(|(replay, _)| replay.clone()).collect();
        let replayed = engine.replay(candidate, &replays)?;
        for (replayed, (_, trained)) in replayed.iter().zip(&passes) {
            mismatch.add(&replayed.logprobs, trained);
            if again {
                proof.cached_tokens += replayed.cached_tokens;
            }
        }
    }
    proof.tokens = mismatch.tokens();
    proof.mean = mismatch.mean();
    proof.max = mismatch.max();
    Ok(proof)
}

/// What one pass decodes of a sample, beside the trained log-probs of the same tokens. None where nothing is left.
fn portion<'a>(
    engine: &Engine,
    chosen: &Chosen,
    trained: &'a [f32],
    again: bool,
) -> Option<(Replay, &'a [f32])> {
    let sample = &chosen.sample;
    let room = engine.room().checked_sub(sample.prompt_ids.len())?;
    let end = sample.token_ids.len().min(TOKENS).min(room);
    let start = if again { end - end.div_ceil(4) } else { 0 };
    let reply = sample.token_ids.get(start..end)?.to_vec();
    let mut prompt = sample.prompt_ids.clone();
    prompt.extend(sample.token_ids.get(..start)?);
    let replay = Replay {
        prompt,
        reply,
        temperature: Laid::of(chosen).sequence(None).temperature,
    };
    (!replay.reply.is_empty()).then_some((replay, trained.get(start..end)?))
}
