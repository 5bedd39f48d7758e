//! What an update counts while it runs.

use std::collections::BTreeMap;

use clawhost_plugins::Metric;

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
    pub(crate) all_tokens: usize,
    pub(crate) reference_seconds: f64,
    pub(crate) update_seconds: f64,
    /// Numbers of the loss component, by their names; a mean over the tokens of the passes.
    pub(crate) told: BTreeMap<String, f64>,
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
