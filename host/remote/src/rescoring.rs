//! Scores a whole reply with the local model, for log-probs that the server does not return.
//!
//! One forward pass over prompt and reply at the request's temperature. If sampling was truncated, the most likely
//! tokens of each position are computed and the token's share among them follows from the order in which both kinds of
//! server and this engine truncate: min-p, top-k, top-p. A token that the local model would have removed, because the
//! server's precision differs, has no processed log-prob, and none is invented.

use clawhost_engine::{Backend, Candidates, ForwardError, LoadedVersion, SamplingParams, Sequence};

/// Maximum number of most likely tokens per position.
const MAX_CANDIDATES: usize = 512;

/// One value per reply token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RescoredLogprobs {
    /// Of the distribution that the token was sampled from, without penalties; NaN where unknown.
    pub(crate) processed: Vec<f32>,
    /// Of the full softmax at the temperature.
    pub(crate) full: Vec<f32>,
}

/// Scores a reply under the distribution it was sampled from.
pub(crate) fn rescore(
    backend: &dyn Backend,
    version: &LoadedVersion,
    prompt: &[u32],
    reply: &[u32],
    sampling: &SamplingParams,
) -> Result<RescoredLogprobs, ForwardError> {
    let truncated = !sampling.is_greedy()
        && (sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0);
    let vocab = backend.model().config().vocab_size;
    let k = if truncated {
        MAX_CANDIDATES.min(vocab)
    } else {
        0
    };
    let temperature = sampling.full_temperature();
    let (full, candidates) = score(backend, version, prompt, reply, (temperature, k))?;
    let processed = if sampling.is_greedy() {
        vec![0.0; full.len()]
    } else if truncated {
        let rows = full.iter().zip(candidates.chunks(k));
        rows.map(|(own, row)| truncated_logprob(*own, row, sampling, k == vocab))
            .collect()
    } else {
        full.clone()
    };
    Ok(RescoredLogprobs { processed, full })
}

/// Log-probs of a reply under the full softmax at a temperature.
pub(crate) fn full_logprobs(
    backend: &dyn Backend,
    version: &LoadedVersion,
    prompt: &[u32],
    reply: &[u32],
    temperature: f32,
) -> Result<Vec<f32>, ForwardError> {
    score(backend, version, prompt, reply, (temperature, 0)).map(|(logprobs, _)| logprobs)
}

fn score(
    backend: &dyn Backend,
    version: &LoadedVersion,
    prompt: &[u32],
    reply: &[u32],
    (temperature, k): (f32, usize),
) -> Result<(Vec<f32>, Vec<f32>), ForwardError> {
    let tokens = [prompt, reply].concat();
    let sequence = Sequence {
        tokens: &tokens,
        start: prompt.len(),
        temperature,
        candidates: if k > 0 {
            Candidates::Top(k)
        } else {
            Candidates::None
        },
    };
    let scored = version.score(backend, &[sequence])?.pop();
    Ok(scored.map_or_else(Default::default, |scored| {
        (scored.logprobs, scored.candidate_logprobs)
    }))
}

/// The log-prob within the truncated distribution, of a token with log-prob `own` in the full one. `row` has the most
/// likely tokens, best first; `is_complete` when these are all tokens.
#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
fn truncated_logprob(own: f32, row: &[f32], sampling: &SamplingParams, is_complete: bool) -> f32 {
    let mut kept: Vec<f64> = row.iter().map(|lp| f64::from(*lp).exp()).collect();
    // Mass of the kept tokens, including those beyond the row.
    let mut total = 1.0;
    let mut is_truncated = is_complete;
    if sampling.min_p > 0.0 {
        let bound = kept.first().copied().unwrap_or(0.0) * f64::from(sampling.min_p);
        let count = kept.iter().take_while(|p| **p >= bound).count();
        is_truncated |= count < kept.len();
        kept.truncate(count);
        total = if is_truncated { kept.iter().sum() } else { 1.0 };
    }
    let top_k = usize::try_from(sampling.top_k).unwrap_or(usize::MAX);
    if top_k > 0 && (top_k <= kept.len() || is_truncated) {
        kept.truncate(top_k);
        is_truncated = true;
        total = kept.iter().sum();
    } else if top_k > 0 {
        return f32::NAN;
    }
    if sampling.top_p < 1.0 {
        let target = f64::from(sampling.top_p) * total;
        let mut reached = 0.0;
        let count = kept.iter().position(|p| {
            reached += *p;
            reached >= target
        });
        match count {
            Some(last) => kept.truncate(last + 1),
            None if is_truncated => {}
            None => return f32::NAN,
        }
        is_truncated = true;
        total = kept.iter().sum();
    }
    let least = kept.last().copied().unwrap_or(f64::INFINITY);
    let mass = f64::from(own).exp();
    // Equal up to f32 rounding of a log-prob: the last kept token is the token itself.
    if is_truncated && mass >= least * (1.0 - 1e-6) {
        (f64::from(own) - total.ln()).min(0.0) as f32
    } else {
        f32::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processed(own: f32, change: impl FnOnce(&mut SamplingParams)) -> f32 {
        let mut sampling = SamplingParams::default();
        change(&mut sampling);
        let row: Vec<f32> = [0.4f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        truncated_logprob(own.ln(), &row, &sampling, false).exp()
    }

    #[test]
    fn truncated_logprobs_are_renormalized() {
        let near = |found: f32, expected: f32| assert!((found - expected).abs() < 1e-6, "{found}");
        near(processed(0.3, |s| s.top_k = 2), 0.3 / 0.7);
        near(processed(0.4, |s| s.top_p = 0.5), 0.4 / 0.7);
        near(processed(0.4, |s| s.min_p = 0.6), 0.4 / 0.7);
        near(processed(0.3, |s| (s.top_k, s.top_p) = (2, 0.6)), 0.3 / 0.7);
        near(processed(0.4, |s| (s.top_k, s.top_p) = (2, 0.5)), 1.0);
    }

    #[test]
    fn unknown_logprobs_are_nan() {
        // Removed here, kept by the server.
        assert!(processed(0.2, |s| s.top_k = 2).is_nan());
        // The truncation boundary is beyond the row.
        assert!(processed(0.4, |s| s.top_p = 0.95).is_nan());
        assert!(processed(0.4, |s| s.top_k = 9).is_nan());
        assert!(processed(0.4, |s| s.min_p = 0.1).is_nan());
    }
}
