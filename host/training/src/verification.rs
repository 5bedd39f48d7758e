//! Verification of a new version before it is published.
//!
//! The weights are read back from the written checkpoint, the same bytes that are served and loaded after a restart, and
//! scored against the trained weights. Both sides are scored as the trainer scores;
//! [`engine_verification`](crate::engine_verification) runs the serving engine.

use clawhost_engine::{Backend, ForwardError};
use clawhost_model::TrainedWeights;
use serde::Serialize;

use crate::batch_sample::BatchSample;
use crate::engine_verification::EngineVerification;
use crate::loss::{LogprobMismatch, sum_kl};
use crate::packing::ModelInput;

/// Log-prob differences on a few trained samples after the update.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VerificationReport {
    /// Samples that were scored.
    pub samples: usize,
    /// Their reply tokens.
    pub tokens: usize,
    /// Mean |served − trained| log-prob.
    pub mean: f64,
    /// Largest |served − trained| log-prob.
    pub max: f64,
    /// Mean log-prob change of tokens with a positive advantage; none without such tokens.
    pub raised: Option<f64>,
    /// Mean log-prob change of tokens with a negative advantage; none without such tokens.
    pub lowered: Option<f64>,
    /// KL divergence per token (k3, clamped) from the policy before the update.
    pub drift: f64,
    /// Result of replaying some of the samples through the serving engine; none with a remote backend.
    pub engine: Option<EngineVerification>,
}

/// The trainer's log-probs of a sample's reply under the new version.
pub(crate) struct TrainedLogprobs {
    /// Index of the sample in the batch.
    pub(crate) index: usize,
    pub(crate) logprobs: Vec<f32>,
}

/// Scores the samples at `indices` under the trained weights and under the weights read back from the checkpoint. `before`
/// holds the log-probs before the update; the sign of `directions` says whether the update raises or lowers a sample.
/// Also returns the trainer's log-probs.
pub(crate) fn verify(
    backend: &dyn Backend,
    trained: &TrainedWeights,
    served: &TrainedWeights,
    chosen: &[BatchSample],
    directions: &[f64],
    before: &[Vec<f32>],
    indices: &[usize],
) -> Result<(VerificationReport, Vec<TrainedLogprobs>), ForwardError> {
    let mut mismatch = LogprobMismatch::default();
    let mut up = LogprobChange::default();
    let mut down = LogprobChange::default();
    let mut report = VerificationReport::default();
    let mut all = Vec::with_capacity(indices.len());
    let scores = |weights: &TrainedWeights| -> Result<Vec<Vec<f32>>, ForwardError> {
        backend.with_weights(Some(weights), |slot| {
            let inputs = indices.iter().map(|&index| {
                // One at a time, so that both sides run the same batch.
                let input = ModelInput::from_sample(&chosen[index]);
                let mut scored = backend.score(slot, &[input.sequence(None)])?;
                Ok(scored.swap_remove(0).logprobs)
            });
            inputs.collect()
        })
    };
    let (trained, served) = (scores(trained)?, scores(served)?);
    for ((&index, trained), served) in indices.iter().zip(trained).zip(served) {
        let before = &before[index];
        mismatch.add(&served, &trained);
        let direction = directions[index];
        for (after, before) in trained.iter().zip(before) {
            let change = f64::from(*after) - f64::from(*before);
            if direction > 0.0 {
                up.add(change);
            } else if direction < 0.0 {
                down.add(change);
            }
        }
        report.drift += sum_kl(&trained, before);
        all.push(TrainedLogprobs {
            index,
            logprobs: trained,
        });
        report.samples += 1;
    }
    report.tokens = mismatch.tokens();
    report.mean = mismatch.mean();
    report.max = mismatch.max();
    report.raised = up.mean();
    report.lowered = down.mean();
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    {
        report.drift /= report.tokens.max(1) as f64;
    }
    Ok((report, all))
}

/// Running mean of log-prob changes.
#[derive(Default)]
struct LogprobChange {
    sum: f64,
    count: f64,
}

impl LogprobChange {
    fn add(&mut self, change: f64) {
        self.sum += change;
        self.count += 1.0;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// All sample indices, alternating between samples that the update raises and the others, so that a prefix holds both.
pub(crate) fn alternate_by_direction(directions: &[f64]) -> Vec<usize> {
    let of = |raised: bool| {
        directions
            .iter()
            .enumerate()
            .filter(move |(_, direction)| (**direction > 0.0) == raised)
            .map(|(i, _)| i)
    };
    let (mut up, mut down) = (of(true), of(false));
    let mut indices = Vec::new();
    loop {
        let round = [up.next(), down.next()];
        if round == [None, None] {
            break;
        }
        indices.extend(round.into_iter().flatten());
    }
    indices
}
