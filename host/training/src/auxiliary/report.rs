//! What a step reports about its auxiliary losses.

use std::collections::BTreeMap;

use clawhost_journal::{PreferencePair, TurnId};
use serde::Serialize;

use crate::auxiliary::term::TermValue;
use crate::generated_replies::GeneratedReply;
use crate::metrics::is_zero;
use crate::rehearsal::RehearsalSet;
use clawhost_config::PairLoss;

/// Metrics of the auxiliary losses of a step.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct AuxiliaryReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pairs: Option<PairMetrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rehearsal: Option<RehearsalMetrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) few_shot: Option<FewShotMetrics>,
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
    /// Pairs that were found satisfied (`training.pairs.max_reward_margin`).
    satisfied: usize,
    /// Largest gradient norm of the pairs' part of an update, over every other update; none if none was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f64>,
    /// Metrics of the pair-loss component, of its last micro-batch.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    component: BTreeMap<String, f64>,
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
    /// How many of them are to explicit requests for the opposite of what the feedback asks for.
    contrary: usize,
    /// How many of these the policy gave.
    #[serde(skip_serializing_if = "is_zero")]
    of_policy: usize,
    /// Reply tokens that the updates compared.
    tokens: usize,
    /// How often a reply was compared with experience in the policy's prompt.
    #[serde(skip_serializing_if = "is_zero")]
    with_experience: usize,
    /// Largest gradient norm of the rehearsal's part of an update, over every other update; none if none was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f64>,
    /// Divergence in the first and the last epoch.
    kl_first: Option<f64>,
    kl_last: Option<f64>,
    /// Divergence after the step on prompts that no update uses; none if this version was not to be scored.
    pub(crate) held_out_kl: Option<f64>,
    held_out: usize,
    /// The same on those that are contrary to the feedback.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_out_contrary_kl: Option<f64>,
    /// Keys of the replies that were drawn.
    used: Vec<String>,
}

/// Metrics of few-shot distillation. Divergences are means per token, in nats.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FewShotMetrics {
    /// Replies to draw from.
    replies: usize,
    /// Largest gradient norm of its part of an update, over the updates that measured it; none if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f64>,
    /// Divergence from the base model with examples in the first and the last epoch.
    kl_first: Option<f64>,
    kl_last: Option<f64>,
}

/// A source of auxiliary losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Pairs,
    FewShot,
    Rehearsal,
}

/// Sums over an epoch.
#[derive(Debug, Default)]
pub(crate) struct EpochMeans {
    pairs: usize,
    loss: f64,
    margin: f64,
    positive: usize,
    few_shot: Mean,
    rehearsal: Mean,
}

/// Sum of divergences and how many there were.
#[derive(Debug, Default)]
struct Mean {
    count: usize,
    sum: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
    }

    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
impl EpochMeans {
    pub(crate) fn add(&mut self, source: Source, value: &TermValue) {
        match *value {
            TermValue::Pair { loss, margin } => {
                self.pairs += 1;
                self.loss += loss;
                self.margin += margin;
                self.positive += usize::from(margin > 0.0);
            }
            TermValue::Divergence { kl } if source == Source::FewShot => self.few_shot.add(kl),
            TermValue::Divergence { kl } => self.rehearsal.add(kl),
        }
    }

    fn per_pair(&self, sum: f64) -> Option<f64> {
        (self.pairs > 0).then(|| sum / self.pairs as f64)
    }
}

impl AuxiliaryReport {
    pub(super) fn set_pairs(&mut self, loss: PairLoss, available: usize) {
        self.pairs = Some(PairMetrics {
            loss,
            available,
            ..PairMetrics::default()
        });
    }

    pub(super) fn add_pair(&mut self, pair: &PreferencePair) {
        if let Some(pairs) = &mut self.pairs {
            pairs.used.push(UsedPair {
                rejected: pair.turns.rejected,
                accepted: pair.turns.accepted,
            });
        }
    }

    pub(super) fn add_satisfied(&mut self) {
        if let Some(pairs) = &mut self.pairs {
            pairs.satisfied += 1;
        }
    }

    pub(super) fn set_component_metrics(&mut self, metrics: BTreeMap<String, f64>) {
        if let Some(pairs) = &mut self.pairs {
            pairs.component = metrics;
        }
    }

    pub(super) fn set_rehearsal(&mut self, set: &RehearsalSet) {
        self.rehearsal = Some(RehearsalMetrics {
            replies: set.train.len(),
            digest: set.digest.clone(),
            contrary: set.contrary,
            of_policy: set.of_policy,
            ..RehearsalMetrics::default()
        });
    }

    pub(super) fn set_few_shot(&mut self, replies: usize) {
        self.few_shot = (replies > 0).then(|| FewShotMetrics {
            replies,
            ..FewShotMetrics::default()
        });
    }

    pub(super) fn add_reply(&mut self, reply: &GeneratedReply, with_experience: bool) {
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.tokens += reply.token_ids.len();
            rehearsal.with_experience += usize::from(with_experience);
            if !rehearsal.used.contains(&reply.key) {
                rehearsal.used.push(reply.key.clone());
            }
        }
    }

    pub(super) fn add_gradient_norm(&mut self, source: Source, norm: f64) {
        let largest = match source {
            Source::Pairs => self.pairs.as_mut().map(|pairs| &mut pairs.gradient_norm),
            Source::FewShot => self.few_shot.as_mut().map(|set| &mut set.gradient_norm),
            Source::Rehearsal => self.rehearsal.as_mut().map(|set| &mut set.gradient_norm),
        };
        if let Some(largest) = largest {
            *largest = Some(largest.map_or(norm, |known| known.max(norm)));
        }
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
            rehearsal.kl_last = means.rehearsal.value();
            rehearsal.kl_first = rehearsal.kl_first.or(rehearsal.kl_last);
        }
        if let Some(few_shot) = &mut self.few_shot {
            few_shot.kl_last = means.few_shot.value();
            few_shot.kl_first = few_shot.kl_first.or(few_shot.kl_last);
        }
    }

    pub(super) fn set_held_out(&mut self, all: &EpochMeans, contrary: &EpochMeans, count: usize) {
        if let Some(rehearsal) = &mut self.rehearsal {
            rehearsal.held_out_kl = all.rehearsal.value();
            rehearsal.held_out_contrary_kl = contrary.rehearsal.value();
            rehearsal.held_out = count;
        }
    }
}
