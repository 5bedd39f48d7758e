//! Log-probs of a whole reply by the weights here, for what the server could not tell.
//!
//! One pass over prompt and reply at the temperature. Where the draw was cut to the likeliest tokens, those of each
//! position are found again and the token's share among them is computed in the order in which both kinds of server
//! and this engine cut: min-p, top-k, top-p. A token that the weights here would have cut, because the server's
//! precision is another, has no log-prob as drawn, and one is not made up for it.

use clawhost_policy::{Candidates, ForwardError, Model, Sampling, Sequence, Served};

/// Likeliest tokens of a position that are looked at.
const LOOKED_AT: usize = 512;

/// One value per reply token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rescored {
    /// As drawn, without penalties; NaN where it cannot be known.
    pub(crate) drawn: Vec<f32>,
    /// Of the full softmax at the temperature.
    pub(crate) full: Vec<f32>,
}

/// Scores a reply as it was sampled.
pub(crate) fn rescore(
    model: &Model,
    served: &Served,
    prompt: &[u32],
    reply: &[u32],
    sampling: &Sampling,
) -> Result<Rescored, ForwardError> {
    let cut = !sampling.is_greedy()
        && (sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0);
    let vocab = model.config().vocab_size;
    let k = if cut { LOOKED_AT.min(vocab) } else { 0 };
    let temperature = sampling.full_temperature();
    let (full, candidates) = score(model, served, prompt, reply, (temperature, k))?;
    let drawn = if sampling.is_greedy() {
        vec![0.0; full.len()]
    } else if cut {
        let rows = full.iter().zip(candidates.chunks(k));
        rows.map(|(own, row)| as_drawn(*own, row, sampling, k == vocab))
            .collect()
    } else {
        full.clone()
    };
    Ok(Rescored { drawn, full })
}

/// Log-probs of a reply under the full softmax at a temperature.
pub(crate) fn plain(
    model: &Model,
    served: &Served,
    prompt: &[u32],
    reply: &[u32],
    temperature: f32,
) -> Result<Vec<f32>, ForwardError> {
    score(model, served, prompt, reply, (temperature, 0)).map(|(logprobs, _)| logprobs)
}

fn score(
    model: &Model,
    served: &Served,
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
    let scored = served.score(model, &[sequence])?.pop();
    Ok(scored.map_or_else(Default::default, |scored| {
        (scored.logprobs, scored.candidate_logprobs)
    }))
}

/// The log-prob among what was kept, of a token that has `own` among all. `row` has the likeliest, best first;
/// `whole` when those are all there are.
#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
fn as_drawn(own: f32, row: &[f32], sampling: &Sampling, whole: bool) -> f32 {
    let mut kept: Vec<f64> = row.iter().map(|lp| f64::from(*lp).exp()).collect();
    // Mass of what was kept so far, with what lies beyond the row.
    let mut total = 1.0;
    let mut inside = whole;
    if sampling.min_p > 0.0 {
        let bound = kept.first().copied().unwrap_or(0.0) * f64::from(sampling.min_p);
        let count = kept.iter().take_while(|p| **p >= bound).count();
        inside |= count < kept.len();
        kept.truncate(count);
        total = if inside { kept.iter().sum() } else { 1.0 };
    }
    let top_k = usize::try_from(sampling.top_k).unwrap_or(usize::MAX);
    if top_k > 0 && (top_k <= kept.len() || inside) {
        kept.truncate(top_k);
        inside = true;
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
            None if inside => {}
            None => return f32::NAN,
        }
        inside = true;
        total = kept.iter().sum();
    }
    let least = kept.last().copied().unwrap_or(f64::INFINITY);
    let mass = f64::from(own).exp();
    // Equal up to the rounding of one f32 log-prob: the last one kept is the token itself.
    if inside && mass >= least * (1.0 - 1e-6) {
        (f64::from(own) - total.ln()).min(0.0) as f32
    } else {
        f32::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(own: f32, change: impl FnOnce(&mut Sampling)) -> f32 {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        let row: Vec<f32> = [0.4f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        as_drawn(own.ln(), &row, &sampling, false).exp()
    }

    #[test]
    fn a_share_is_of_what_was_kept() {
        let near = |found: f32, expected: f32| assert!((found - expected).abs() < 1e-6, "{found}");
        near(drawn(0.3, |s| s.top_k = 2), 0.3 / 0.7);
        near(drawn(0.4, |s| s.top_p = 0.5), 0.4 / 0.7);
        near(drawn(0.4, |s| s.min_p = 0.6), 0.4 / 0.7);
        near(drawn(0.3, |s| (s.top_k, s.top_p) = (2, 0.6)), 0.3 / 0.7);
        near(drawn(0.4, |s| (s.top_k, s.top_p) = (2, 0.5)), 1.0);
    }

    #[test]
    fn what_cannot_be_known_is_not_made_up() {
        // Cut here, kept there.
        assert!(drawn(0.2, |s| s.top_k = 2).is_nan());
        // The border lies beyond what was looked at.
        assert!(drawn(0.4, |s| s.top_p = 0.95).is_nan());
        assert!(drawn(0.4, |s| s.top_k = 9).is_nan());
        assert!(drawn(0.4, |s| s.min_p = 0.1).is_nan());
    }
}
