//! Verification on the serving engine: recorded replies of the batch are replayed under the candidate version before it is
//! published, and their log-probs compared with the trainer's.
//!
//! [`verify`](crate::verification::verify) compares two forward passes of the training code. This covers the serving
//! path: adapter loading, batching, chunked prefill, KV cache and prefix cache.

use clawhost_engine::{Engine, LoadedVersion, Replay, ReplayError};
use serde::Serialize;

use crate::batch_sample::BatchSample;
use crate::loss::LogprobMismatch;
use crate::packing::ModelInput;

/// Samples of a batch that are replayed.
pub(crate) const REPLAY_SAMPLES: usize = 2;

/// Tokens of a reply that are replayed at most, because the decode steps share the engine with requests.
const MAX_REPLAY_TOKENS: usize = 64;

/// Differences between the engine's and the trainer's log-probs on replayed samples, under the new version.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EngineVerification {
    /// Samples that were replayed.
    pub samples: usize,
    /// Tokens that were decoded and compared; tokens of the second pass count again.
    pub tokens: usize,
    /// Prompt tokens that the second pass found in the prefix cache.
    pub cached_tokens: usize,
    /// Mean |engine − trained| log-prob.
    pub mean: f64,
    /// Largest |engine − trained| log-prob.
    pub max: f64,
}

/// Whether the sample's prompt and at least one reply token fit the engine's limit.
pub(crate) fn fits(engine: &Engine, chosen: &BatchSample) -> bool {
    !chosen.sample.token_ids.is_empty()
        && chosen.sample.prompt_ids.len() < engine.max_request_tokens()
}

/// Replays samples through the engine under a loaded version, which need not be active. Each sample comes with the
/// trainer's log-probs of its reply under the same weights.
///
/// The first pass decodes all samples in one batch. The second pass decodes only the last quarter of each reply, so that
/// its prompt hits the prefix cache.
pub(crate) fn replay(
    engine: &Engine,
    candidate: &LoadedVersion,
    samples: &[(&BatchSample, &[f32])],
) -> Result<EngineVerification, ReplayError> {
    let mut report = EngineVerification {
        samples: samples.len(),
        ..EngineVerification::default()
    };
    let mut mismatch = LogprobMismatch::default();
    for second_pass in [false, true] {
        let passes: Vec<(Replay, &[f32])> = samples
            .iter()
            .map(|(chosen, trained)| replay_slice(engine, chosen, trained, second_pass))
            .collect();
        let replays: Vec<Replay> = passes.iter().map(|(replay, _)| replay.clone()).collect();
        let replayed = engine.replay(candidate, &replays)?;
        for (replayed, (_, trained)) in replayed.iter().zip(&passes) {
            mismatch.add(&replayed.logprobs, trained);
            if second_pass {
                report.cached_tokens += replayed.cached_tokens;
            }
        }
    }
    report.tokens = mismatch.tokens();
    report.mean = mismatch.mean();
    report.max = mismatch.max();
    Ok(report)
}

/// The part of a reply that one pass decodes, with the trainer's log-probs of the same tokens. The sample [`fits`].
fn replay_slice<'a>(
    engine: &Engine,
    chosen: &BatchSample,
    trained: &'a [f32],
    second_pass: bool,
) -> (Replay, &'a [f32]) {
    let sample = &chosen.sample;
    let room = engine.max_request_tokens() - sample.prompt_ids.len();
    let end = sample.token_ids.len().min(MAX_REPLAY_TOKENS).min(room);
    let start = if second_pass {
        end - end.div_ceil(4)
    } else {
        0
    };
    let reply = sample.token_ids[start..end].to_vec();
    let prompt = [&sample.prompt_ids[..], &sample.token_ids[..start]].concat();
    let replay = Replay {
        prompt,
        reply,
        temperature: ModelInput::from_sample(chosen).sequence(None).temperature,
    };
    (replay, &trained[start..end])
}
