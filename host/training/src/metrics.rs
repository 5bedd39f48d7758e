//! Metrics of a step, as stored in the journal and shown by `clawhost status`.

use std::collections::BTreeMap;

use clawhost_journal::{DistilledTurn, SampleId};
use serde::Serialize;

use crate::auxiliary::AuxiliaryReport;
use crate::batch::{
    Batch, DROP_NO_HINT, DROP_NO_REWARD, DROP_SINGLETON_GROUP, DROP_ZERO_ADVANTAGE,
};
use crate::component::ComponentIdentity;
use crate::forced_tokens::DROP_FORCED;
use crate::loss::LogprobMismatch;
use crate::report::{SampleReport, UpdateReport};
use crate::verification::VerificationReport;

/// Difference between the trainer's and the engine's log-probs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MismatchMetrics {
    pub(crate) samples: usize,
    pub(crate) tokens: usize,
    /// Mean |trainer − engine|; in f32 and on the same engine expect less than 1e-4.
    pub(crate) mean: f64,
    pub(crate) max: f64,
    /// Mean k3 estimate of the KL divergence between engine and trainer.
    pub(crate) divergence: f64,
    /// Largest importance weight exp(trainer − engine), before clipping.
    pub(crate) max_weight: f64,
}

impl MismatchMetrics {
    fn new(samples: usize, mismatch: &LogprobMismatch) -> Self {
        Self {
            samples,
            tokens: mismatch.tokens(),
            mean: mismatch.mean(),
            max: mismatch.max(),
            divergence: mismatch.kl(),
            max_weight: mismatch.max_weight(),
        }
    }
}

/// The metrics of one step. Metrics of stages that the step did not reach are absent.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Metrics {
    pub(crate) samples: usize,
    pub(crate) dropped: usize,
    pub(crate) dropped_stale: usize,
    pub(crate) without_signal: usize,
    /// Dropped samples by kind of reason.
    pub(crate) dropped_by: BTreeMap<&'static str, usize>,
    /// Dropped groups whose rewards are all equal.
    pub(crate) constant_groups: usize,
    /// Samples with a reward.
    pub(crate) rewarded: usize,
    /// Samples with a usable hint, or with experience for the teacher.
    pub(crate) hinted: usize,
    /// Samples whose teacher reads experience.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) with_experience: usize,
    pub(crate) reward_mean: f64,
    /// Mean overlong penalty (0 or less) of the samples with an advantage.
    pub(crate) shaping_mean: f64,
    /// Mean over the samples with an advantage.
    pub(crate) advantage_mean: f64,
    pub(crate) advantage_absolute: f64,
    /// Running mean of what there is left to learn (`training.optimizer.adaptive_lr`).
    pub(crate) signal: f64,
    pub(crate) staleness_mean: f64,
    pub(crate) staleness_max: u64,
    /// Loss, estimator and gate components, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) components: BTreeMap<&'static str, ComponentIdentity>,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub(crate) update: Option<UpdateMetrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change_norm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<VerificationReport>,
    /// Metrics of the gate component by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) gate: BTreeMap<String, f64>,
    /// Time to build the batch.
    pub(crate) draw_seconds: f64,
    /// Time to write the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write_seconds: Option<f64>,
    /// Time to verify the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof_seconds: Option<f64>,
    pub(crate) seconds: f64,
}

/// Metrics of the update.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct UpdateMetrics {
    updates: u64,
    learning_rate: f64,
    /// Divergence at which `training.target_kl` ended the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_at_kl: Option<f64>,
    /// Present if the step ended because no pair was left to learn from.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pairs_satisfied: bool,
    loss_first: f64,
    loss_last: f64,
    clip_fraction: f64,
    /// KL divergence of the policy before the step to the base model, from clamped k3 estimates.
    kl_reference: f64,
    kl_old: f64,
    entropy: f64,
    gradient_norm: f64,
    /// Trainer's against the engine's log-probs over all samples, including those of older versions.
    mismatch: MismatchMetrics,
    /// Trainer's against the engine's log-probs over samples of the same version.
    parity: MismatchMetrics,
    effective_sample_share: f64,
    reply_tokens: usize,
    /// Reply tokens that a grammar forced; they are masked.
    forced_tokens: usize,
    all_tokens: usize,
    /// Mean of lT - lo over replies with teacher scores; absent without such replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher_gap: Option<f64>,
    /// Replies for which the teacher returned no scores; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher_silent: Option<usize>,
    reference_seconds: f64,
    teacher_seconds: f64,
    update_seconds: f64,
    tokens_per_second: f64,
    /// Metrics of the loss component by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    loss_component: BTreeMap<String, f64>,
    /// Pairs and rehearsal.
    #[serde(flatten)]
    auxiliary: AuxiliaryReport,
    /// Metrics of each sample.
    #[serde(rename = "samples_moved")]
    moved: Vec<SampleReport>,
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
impl Metrics {
    pub(crate) fn from_batch(batch: &Batch) -> Self {
        let count = batch.chosen.len().max(1) as f64;
        // Samples that train on their hints alone have no advantage, which is not an advantage of 0.
        let advantages: Vec<f64> = batch.chosen.iter().filter_map(|c| c.advantage).collect();
        let per_advantage = |sum: f64| sum / advantages.len().max(1) as f64;
        let rewards: Vec<f64> = batch
            .chosen
            .iter()
            .filter_map(|c| c.sample.reward.map(f64::from))
            .collect();
        Self {
            samples: batch.chosen.len(),
            dropped: batch.dropped.len(),
            dropped_stale: batch.stale,
            without_signal: batch.without_signal,
            dropped_by: count_drop_reasons(batch.dropped.iter().map(|(_, reason)| reason.as_str())),
            constant_groups: batch.constant_groups,
            rewarded: rewards.len(),
            hinted: batch.chosen.iter().filter(|c| !c.hinted.is_empty()).count(),
            with_experience: batch
                .chosen
                .iter()
                .filter(|c| c.hinted.iter().any(|prompt| !prompt.experience.is_empty()))
                .count(),
            reward_mean: rewards.iter().sum::<f64>() / rewards.len().max(1) as f64,
            shaping_mean: per_advantage(batch.shaping),
            advantage_mean: per_advantage(advantages.iter().sum()),
            advantage_absolute: per_advantage(advantages.iter().map(|a| a.abs()).sum()),
            signal: batch.baselines.signal(),
            staleness_mean: batch.chosen.iter().map(|c| c.staleness as f64).sum::<f64>() / count,
            staleness_max: batch.chosen.iter().map(|c| c.staleness).max().unwrap_or(0),
            ..Self::default()
        }
    }

    /// The mean advantage of a sample's trained tokens, from rewards and teacher gaps.
    pub(crate) fn advantage_of(&self, sample: SampleId) -> Option<f64> {
        let rows = &self.update.as_ref()?.moved;
        Some(rows.iter().find(|row| row.sample == sample)?.advantage)
    }

    /// The turns that were distilled with experience alone: on-policy, and without a hint of their own.
    pub(crate) fn distilled_turns(&self) -> Vec<DistilledTurn> {
        let rows = self.update.iter().flat_map(|update| &update.moved);
        rows.filter(|row| row.hint.is_none() && !row.off_policy && !row.experience.is_empty())
            .filter_map(|row| {
                Some(DistilledTurn {
                    turn: row.turn,
                    entries: row.experience.clone(),
                    gap: row.teacher_kl?,
                })
            })
            .collect()
    }

    pub(crate) fn set_update(&mut self, report: &UpdateReport) {
        self.update = Some(UpdateMetrics {
            updates: report.updates,
            learning_rate: report.learning_rate,
            stopped_at_kl: report.stopped_at_kl,
            pairs_satisfied: report.pairs_satisfied,
            loss_first: report.first_loss,
            loss_last: report.last_loss,
            clip_fraction: report.clipped,
            kl_reference: report.kl_reference,
            kl_old: report.kl_old,
            entropy: report.entropy,
            gradient_norm: report.gradient_norm,
            mismatch: MismatchMetrics::new(
                report.samples.iter().filter(|s| !s.off_policy).count(),
                &report.mismatch,
            ),
            parity: MismatchMetrics::new(report.parity_samples, &report.parity),
            effective_sample_share: report.mismatch.effective_share(),
            reply_tokens: report.reply_tokens,
            forced_tokens: report.forced_tokens,
            all_tokens: report.all_tokens,
            teacher_gap: teacher_gap(report),
            teacher_silent: match report
                .samples
                .iter()
                .filter(|s| s.teacher_silent.is_some())
                .count()
            {
                0 => None,
                count => Some(count),
            },
            reference_seconds: report.reference_seconds,
            teacher_seconds: report.teacher_seconds,
            update_seconds: report.update_seconds,
            tokens_per_second: report.all_tokens as f64 / report.update_seconds.max(1e-9),
            loss_component: report.component_metrics.clone(),
            auxiliary: report.auxiliary.clone(),
            moved: report.samples.clone(),
        });
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(crate) fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Counts dropped samples by kind of reason.
fn count_drop_reasons<'a>(reasons: impl Iterator<Item = &'a str>) -> BTreeMap<&'static str, usize> {
    const KINDS: [(&str, &str); 7] = [
        ("stale", "stale:"),
        ("unusable", "unusable:"),
        ("alone", DROP_SINGLETON_GROUP),
        ("level", DROP_ZERO_ADVANTAGE),
        ("no_reward", DROP_NO_REWARD),
        ("no_hint", DROP_NO_HINT),
        ("forced", DROP_FORCED),
    ];
    let mut kinds = BTreeMap::new();
    for reason in reasons {
        let kind = KINDS.iter().find(|(_, start)| reason.starts_with(start));
        *kinds
            .entry(kind.map_or("other", |kind| kind.0))
            .or_default() += 1;
    }
    kinds
}

/// Mean gap over replies, each with the same weight.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn teacher_gap(report: &UpdateReport) -> Option<f64> {
    let gaps: Vec<f64> = report.samples.iter().filter_map(|s| s.gap).collect();
    (!gaps.is_empty()).then(|| gaps.iter().sum::<f64>() / gaps.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::Baselines;
    use crate::batch_sample::BatchSample;
    use crate::tests::sample;

    #[test]
    fn means_over_advantages_leave_out_samples_that_train_on_their_hints() {
        let chosen = |id, advantage| BatchSample {
            sample: sample(id, 1.0),
            advantage,
            token_advantages: None,
            hinted: Vec::new(),
            off_policy: false,
            staleness: 0,
        };
        let batch = Batch {
            chosen: vec![chosen(1, Some(-0.5)), chosen(2, None), chosen(3, None)],
            dropped: Vec::new(),
            baselines: Baselines::new(0.5, 0.0),
            stale: 0,
            without_signal: 0,
            constant_groups: 0,
            shaping: -0.25,
        };
        let metrics = Metrics::from_batch(&batch);
        assert_eq!((metrics.samples, metrics.rewarded), (3, 3));
        assert_eq!(metrics.shaping_mean, -0.25);
        assert_eq!(
            (metrics.advantage_mean, metrics.advantage_absolute),
            (-0.5, 0.5)
        );
    }
}
