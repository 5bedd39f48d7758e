//! What an update counts while it runs.

use std::collections::BTreeMap;

use clawhost_journal::{SampleId, TurnId};
use clawhost_plugins::Metric;
use serde::Serialize;

use crate::loss::{Mismatch, SequenceLoss};

/// Numbers of the update. Means are per trained token of the last epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// Optimizer updates that were made; minibatches without a gradient make none.
    pub(crate) updates: u64,
    pub(crate) learning_rate: f64,
    /// Loss of the first and of the last epoch.
    pub(crate) first_loss: f64,
    pub(crate) last_loss: f64,
    pub(crate) clipped: f64,
    pub(crate) divergence: f64,
    pub(crate) drift: f64,
    pub(crate) entropy: f64,
    /// Largest gradient norm before clipping.
    pub(crate) gradient_norm: f64,
    /// Trainer against engine, all samples.
    pub(crate) mismatch: Mismatch,
    /// Trainer against engine, samples of the version that the update starts from.
    pub(crate) parity: Mismatch,
    pub(crate) parity_samples: usize,
    pub(crate) reply_tokens: usize,
    /// Of these, tokens at which a constraint left no choice.
    pub(crate) forced_tokens: usize,
    pub(crate) all_tokens: usize,
    pub(crate) reference_seconds: f64,
    /// The policy before the update, and the teacher.
    pub(crate) teacher_seconds: f64,
    pub(crate) update_seconds: f64,
    /// Numbers of the loss component, by their names; a mean over the tokens of the passes.
    pub(crate) told: BTreeMap<String, f64>,
    /// One for each sample of the batch.
    pub(crate) samples: Vec<SampleReport>,
}

/// What one sample did in a step.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SampleReport {
    pub(crate) sample: SampleId,
    pub(crate) turn: TurnId,
    pub(crate) reward: Option<f32>,
    /// The number of the hint that its teacher read.
    pub(crate) hint: Option<i64>,
    /// Mean over the tokens that trained, from rewards and gaps.
    pub(crate) advantage: f64,
    /// Mean of lT - lo.
    pub(crate) gap: Option<f64>,
    /// Why its teacher has said nothing, where one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) teacher_silent: Option<String>,
    /// Tokens that trained.
    pub(crate) tokens: usize,
    /// Its share of the last epoch's loss.
    pub(crate) loss: f64,
    /// Sum of |dL/dlogprob|, over its tokens and what they were compared with, in the last epoch.
    pub(crate) pull: f64,
    pub(crate) clip_fraction: f64,
    /// Log-prob of the whole reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprob_before: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprob_after: Option<f64>,
}

/// What one sample came to in an epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moved {
    pub(crate) loss: f64,
    pub(crate) pull: f64,
    pub(crate) clipped: f64,
}

impl Moved {
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn of(loss: &SequenceLoss<f32>, d_candidates: &[f32]) -> Self {
        let partials = loss.d_logprob.iter().chain(d_candidates);
        Self {
            loss: loss.loss,
            pull: partials.map(|d| f64::from(d.abs())).sum(),
            clipped: loss.clipped as f64 / loss.tokens.max(1) as f64,
        }
    }
}

/// Sums over one epoch.
#[derive(Default)]
pub(crate) struct Totals {
    loss: f64,
    tokens: usize,
    clipped: usize,
    divergence: f64,
    drift: f64,
    entropy: f64,
    /// Numbers of a loss component: sums over tokens, and the tokens.
    told: BTreeMap<String, (f64, usize)>,
}

impl Totals {
    /// Takes the component's numbers of a pass of so many tokens.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn tell(&mut self, metrics: Vec<Metric>, tokens: usize) {
        for metric in metrics {
            let (sum, weight) = self.told.entry(metric.name).or_default();
            *sum += metric.value * tokens as f64;
            *weight += tokens;
        }
    }

    pub(crate) fn add(&mut self, loss: &SequenceLoss<f32>) {
        self.loss += loss.loss;
        self.tokens += loss.tokens;
        self.clipped += loss.clipped;
        self.divergence += loss.divergence;
        self.drift += loss.drift;
        self.entropy += loss.entropy;
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
impl Report {
    /// Which way each sample was pulled: by its advantage, or where it has none by how much likelier its teacher
    /// finds it.
    pub(crate) fn pulls(&self) -> Vec<f64> {
        let pull = |sample: &SampleReport| match sample.advantage {
            0.0 => sample.gap.unwrap_or(0.0),
            advantage => advantage,
        };
        self.samples.iter().map(pull).collect()
    }

    pub(crate) fn take(&mut self, totals: &Totals, epoch: usize, minibatches: usize) {
        let tokens = totals.tokens.max(1) as f64;
        let loss = totals.loss / minibatches as f64;
        if epoch == 0 {
            self.first_loss = loss;
        }
        self.last_loss = loss;
        self.clipped = totals.clipped as f64 / tokens;
        self.divergence = totals.divergence / tokens;
        self.drift = totals.drift / tokens;
        self.entropy = totals.entropy / tokens;
        self.told = totals
            .told
            .iter()
            .map(|(name, (sum, weight))| (name.clone(), sum / (*weight).max(1) as f64))
            .collect();
    }
}
