//! Proof that a new version is what was trained, before anybody is served with it.
//!
//! It is read back from the checkpoint that was written, so that the very bytes that will
//! be served, and loaded after a restart, are scored against the trainer's own forward pass. Both sides are passes of
//! the training code; [`engine_proof`](crate::engine_proof) runs the serving engine.

use clawhost_policy::{ForwardError, Learned, Model};
use serde::Serialize;

use crate::batch::Chosen;
use crate::engine_proof::EngineProof;
use crate::loss::Mismatch;
use crate::packing::Laid;
use crate::update::drift;

/// What was measured on a few trained samples after the update.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Proof {
    /// Samples that were scored.
    pub samples: usize,
    /// Their reply tokens.
    pub tokens: usize,
    /// Mean |served − trained| log-prob.
    pub mean: f64,
    /// Largest |served − trained| log-prob.
    pub max: f64,
    /// Mean change of the log-prob of tokens with a positive advantage; none when there were none.
    pub raised: Option<f64>,
    /// Mean change of the log-prob of tokens with a negative advantage; none when there were none.
    pub lowered: Option<f64>,
    /// Divergence per token of the new policy from the one before the update.
    pub drift: f64,
    /// The same samples, or some of them, replayed through the serving engine; none where another program generates.
    pub engine: Option<EngineProof>,
}

/// The trainer's log-probs of a sample's reply under the new version.
pub(crate) struct Trained {
    /// Which chosen sample.
    pub(crate) index: usize,
    pub(crate) logprobs: Vec<f32>,
}

/// Scores samples under the version as trained and as it was read back. `before` are the log-probs before the update,
/// `pulls` says which samples were pulled up and which down. Also gives the trainer's log-probs.
pub(crate) fn prove(
    model: &Model,
    trained: &Learned,
    served: &Learned,
    chosen: &[Chosen],
    pulls: &[f64],
    before: &[Vec<f32>],
    picks: &[usize],
) -> Result<(Proof, Vec<Trained>), ForwardError> {
    let mut mismatch = Mismatch::default();
    let mut up = Change::default();
    let mut down = Change::default();
    let mut proof = Proof::default();
    let mut all = Vec::with_capacity(picks.len());
    for &index in picks {
        let (Some(sample), Some(before)) = (chosen.get(index), before.get(index)) else {
            continue;
        };
        let laid = Laid::of(sample);
        let sequences = [laid.sequence(None)];
        let pass = trained.forward_train(model, &sequences)?;
        let scored = served.score(model, &sequences)?;
        for (trained, served) in pass.scored().iter().zip(&scored) {
            mismatch.add(&served.logprobs, &trained.logprobs);
            let pull = pulls.get(index).copied().unwrap_or(0.0);
            for (after, before) in trained.logprobs.iter().zip(before) {
                let change = f64::from(*after) - f64::from(*before);
                if pull > 0.0 {
                    up.add(change);
                } else if pull < 0.0 {
                    down.add(change);
                }
            }
            proof.drift += drift(&trained.logprobs, before);
            all.push(Trained {
                index,
                logprobs: trained.logprobs.clone(),
            });
        }
        proof.samples += 1;
    }
    proof.tokens = mismatch.tokens();
    proof.mean = mismatch.mean();
    proof.max = mismatch.max();
    proof.raised = up.mean();
    proof.lowered = down.mean();
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    {
        proof.drift /= proof.tokens.max(1) as f64;
    }
    Ok((proof, all))
}

/// Sum of changes.
#[derive(Default)]
struct Change {
    sum: f64,
    count: f64,
}

impl Change {
    fn add(&mut self, change: f64) {
        self.sum += change;
        self.count += 1.0;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// All samples in the order in which they are looked at: the first pulled up, the first that was not, the second …
pub(crate) fn in_turns(pulls: &[f64]) -> Vec<usize> {
    let of = |raised: bool| {
        pulls
            .iter()
            .enumerate()
            .filter(move |(_, pull)| (**pull > 0.0) == raised)
            .map(|(i, _)| i)
    };
    let (mut up, mut down) = (of(true), of(false));
    let mut picks = Vec::new();
    loop {
        let round = [up.next(), down.next()];
        if round == [None, None] {
            break;
        }
        picks.extend(round.into_iter().flatten());
    }
    picks
}
