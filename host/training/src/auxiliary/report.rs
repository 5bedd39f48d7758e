//! What a step reports about its auxiliary losses.

use clawhost_journal::{PreferencePair, TurnId};
use serde::Serialize;

use crate::auxiliary::term::TermValue;
use crate::rehearsal::{RehearsalReply, RehearsalSet};
use clawhost_config::PairLoss;

/// Metrics of the auxiliary losses of a step.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct AuxiliaryReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pairs: Option<PairMetrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rehearsal: Option<RehearsalMetrics>,
}

/// Metrics of the pairs. Means are over the pairs that the updates of an epoch drew; none if they drew none.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PairMetrics {
    loss: PairLoss,
    /// Pairs to draw from.
    available: usize,
    /// Mean loss in the first and the last epoch.
    loss_first: Option<f64>,
    loss_last: Option<f64>,
    /// Mean margin of the accepted reply over the base model, in nats.
    margin_first: Option<f64>,
    margin_last: Option<f64>,
    /// Share of pairs with a positive margin in the last epoch.
    accuracy: Option<f64>,
    /// The pairs that were drawn, by their turns.
    used: Vec<UsedPair>,
}

/// A pair that a step trained on.
#[derive(Debug, Clone, Serialize)]
struct UsedPair {
    rejected: Option<TurnId>,
    accepted: TurnId,
}

/// Metrics of rehearsal. Divergences are means per token, in nats.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct RehearsalMetrics {
    /// Replies to draw from, and a digest of them.
    replies: usize,
    digest: String,
    /// Divergence in the first and the last epoch.
    kl_first: Option<f64>,
    kl_last: Option<f64>,
    /// Divergence after the step on prompts that no update uses; none if this version was not to be scored.
    pub(crate) held_out_kl: Option<f64>,
    held_out: usize,
    /// Keys of the cached replies that were drawn.
    used: Vec<String>,
}

/// Sums over an epoch.
#[derive(Debug, Default)]
pub(crate) struct EpochMeans {
    pairs: usize,
    loss: f64,
    margin: f64,
    positive: usize,
    replies: usize,
    kl: f64,
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
impl EpochMeans {
    pub(crate) fn add(&mut self, value: &TermValue) {
        match *value {
            TermValue::Pair { loss, margin } => {
                self.pairs += 1;
                self.loss += loss;
                self.margin += margin;
                self.positive += usize::from(margin > 0.0);
            }
            TermValue::Rehearsal { kl } => {
                self.replies += 1;
                self.kl += kl;
            }
        }
    }

    fn per_pair(&self, sum: f64) -> Option<f64> {
        (self.pairs > 0).then(|| sum / self.pairs as f64)
    }

    fn kl(&self) -> Option<f64> {
        (self.replies > 0).then(|| self.kl / self.replies as f64)
    }
}

impl AuxiliaryReport {
    pub(super) fn set_pairs<'a>(
        &mut self,
        loss: PairLoss,
        available: usize,
        used: impl Iterator<Item = &'a PreferencePair>,
    ) {
        self.pairs = Some(PairMetrics {
            loss,
            available,
            used: used
                .map(|pair| UsedPair {
                    rejected: pair.turns.rejected,
                    accepted: pair.turns.accepted,
                })
                .collect(),
            ..PairMetrics::default()
        });
    }

    pub(super) fn set_rehearsal<'a>(
        &mut self,
        set: &RehearsalSet,
        used: impl Iterator<Item = &'a RehearsalReply>,
    ) {
        self.rehearsal = Some(RehearsalMetrics {
            replies: set.train.len(),
            digest: set.digest.clone(),
            used: used.map(|reply| reply.key.clone()).collect(),
            ..RehearsalMetrics::default()
        });
    }

    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub(super) fn record_epoch(&mut self, means: &EpochMeans) {
        if let Some(pairs) = &mut self.pairs {
            pairs.loss_last = means.per_pair(means.loss);
            pairs.margin_last = means.per_pair(means.margin);
            pairs.accuracy = means.per_pair(means.positive as f64);
            pairs.loss_first = pairs.loss_first.or(pairs.loss_last);
            pairs.margin_first = pairs.margin_first.or(pairs.margin_last);
        }
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.kl_last = means.kl();
            rehearsal.kl_first = rehearsal.kl_first.or(rehearsal.kl_last);
        }
    }

    pub(super) fn set_held_out(&mut self, means: &EpochMeans, count: usize) {
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.held_out_kl = means.kl();
            rehearsal.held_out = count;
        }
    }
}
