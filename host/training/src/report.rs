//! Metrics that an update collects while it runs.

use std::collections::BTreeMap;

use clawhost_journal::{SampleId, TurnId};
use clawhost_plugins::Metric;
use serde::Serialize;

use crate::auxiliary::AuxiliaryReport;
use crate::loss::{LogprobMismatch, SequenceLoss};

/// Metrics of an update. Means are per trained token of the last epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct UpdateReport {
    /// Optimizer updates; a minibatch with a zero gradient makes none.
    pub(crate) updates: u64,
    pub(crate) learning_rate: f64,
    /// Loss of the first and of the last epoch.
    pub(crate) first_loss: f64,
    pub(crate) last_loss: f64,
    pub(crate) clipped: f64,
    /// KL divergence of the policy that the update starts from to the base model: the mean of the k3 estimates of the reply
    /// tokens, each clamped. Tokens of the updated policy would be needed to estimate its own.
    pub(crate) kl_reference: f64,
    pub(crate) kl_old: f64,
    pub(crate) entropy: f64,
    /// Largest gradient norm before clipping.
    pub(crate) gradient_norm: f64,
    /// Trainer's against the engine's log-probs, all samples.
    pub(crate) mismatch: LogprobMismatch,
    /// Trainer's against the engine's log-probs, only samples of the version that the update starts from.
    pub(crate) parity: LogprobMismatch,
    pub(crate) parity_samples: usize,
    pub(crate) reply_tokens: usize,
    /// Reply tokens that the grammar forced.
    pub(crate) forced_tokens: usize,
    pub(crate) all_tokens: usize,
    pub(crate) reference_seconds: f64,
    /// Time to score the policy before the update and the teacher.
    pub(crate) teacher_seconds: f64,
    pub(crate) update_seconds: f64,
    /// Metrics of the loss component by name, averaged over the tokens of the micro-batches.
    pub(crate) component_metrics: BTreeMap<String, f64>,
    /// Divergence from the old policy at which `training.target_kl` ended the step; none if it did not.
    pub(crate) stopped_at_kl: Option<f64>,
    /// Whether the step ended because no pair was left to learn from and samples do not train.
    pub(crate) pairs_satisfied: bool,
    pub(crate) auxiliary: AuxiliaryReport,
    /// One for each sample of the batch.
    pub(crate) samples: Vec<SampleReport>,
}

/// Metrics of one sample in a step.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SampleReport {
    pub(crate) sample: SampleId,
    pub(crate) turn: TurnId,
    pub(crate) reward: Option<f32>,
    /// Journal id of the hint that the teacher read.
    pub(crate) hint: Option<i64>,
    /// Journal ids of the experience that the teacher read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) experience: Vec<i64>,
    /// Whether the reply was sampled with experience in its prompt, and distilled without it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) off_policy: bool,
    /// Mean over the trained tokens, from rewards and teacher gaps.
    pub(crate) advantage: f64,
    /// Mean of lT - lo (teacher's log-prob less the policy's before the update).
    pub(crate) gap: Option<f64>,
    /// Estimate of KL(policy || teacher) per token, of the policy before the update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) teacher_kl: Option<f64>,
    /// Why the teacher has no scores for this sample, if it was asked for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) teacher_silent: Option<String>,
    /// Trained tokens.
    pub(crate) tokens: usize,
    /// Its part of the last epoch's loss.
    pub(crate) loss: f64,
    /// Sum of |dL/dlogprob| over its tokens and its top-k candidates in the last epoch.
    pub(crate) pull: f64,
    pub(crate) clip_fraction: f64,
    /// Log-prob of the whole reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprob_before: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprob_after: Option<f64>,
}

/// Loss statistics of one sample in an epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct SampleLossStats {
    pub(crate) loss: f64,
    /// Sum of |dL/dlogprob|.
    pub(crate) gradient_l1: f64,
    pub(crate) clip_fraction: f64,
}

impl SampleLossStats {
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn new(loss: &SequenceLoss<f32>, d_candidates: &[f32]) -> Self {
        let partials = loss.d_logprob.iter().chain(d_candidates);
        Self {
            loss: loss.loss,
            gradient_l1: partials.map(|d| f64::from(d.abs())).sum(),
            clip_fraction: loss.clipped as f64 / loss.tokens.max(1) as f64,
        }
    }
}

/// Sums over one epoch.
#[derive(Default)]
pub(crate) struct Totals {
    loss: f64,
    tokens: usize,
    clipped: usize,
    kl_old: f64,
    entropy: f64,
    /// Metrics of the loss component: sums weighted by tokens, and the number of tokens.
    component_metrics: BTreeMap<String, (f64, usize)>,
}

impl Totals {
    /// Adds the component's metrics of a micro-batch with this number of trained tokens.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn add_component_metrics(&mut self, metrics: Vec<Metric>, tokens: usize) {
        for metric in metrics {
            let (sum, weight) = self.component_metrics.entry(metric.name).or_default();
            *sum += metric.value * tokens as f64;
            *weight += tokens;
        }
    }

    /// Sum of the divergences from the old policy, and their number.
    pub(crate) fn divergence(&self) -> (f64, usize) {
        (self.kl_old, self.tokens)
    }

    /// Mean divergence from the old policy of the tokens since [`Totals::divergence`].
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn mean_divergence_since(&self, (sum, tokens): (f64, usize)) -> f64 {
        (self.kl_old - sum) / (self.tokens - tokens).max(1) as f64
    }

    pub(crate) fn add(&mut self, loss: &SequenceLoss<f32>) {
        self.loss += loss.loss;
        self.tokens += loss.tokens;
        self.clipped += loss.clipped;
        self.kl_old += loss.kl_old;
        self.entropy += loss.entropy;
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
impl UpdateReport {
    /// The direction of each sample's update, by sign: its advantage, or its teacher gap if the advantage is 0.
    pub(crate) fn update_directions(&self) -> Vec<f64> {
        let direction = |sample: &SampleReport| match sample.advantage {
            0.0 => sample.gap.unwrap_or(0.0),
            advantage => advantage,
        };
        self.samples.iter().map(direction).collect()
    }

    pub(crate) fn record_epoch(&mut self, totals: &Totals, epoch: usize, minibatches: usize) {
        let tokens = totals.tokens.max(1) as f64;
        let loss = totals.loss / minibatches as f64;
        if epoch == 0 {
            self.first_loss = loss;
        }
        self.last_loss = loss;
        self.clipped = totals.clipped as f64 / tokens;
        self.kl_old = totals.kl_old / tokens;
        self.entropy = totals.entropy / tokens;
        self.component_metrics = totals
            .component_metrics
            .iter()
            .map(|(name, (sum, weight))| (name.clone(), sum / (*weight).max(1) as f64))
            .collect();
    }
}
