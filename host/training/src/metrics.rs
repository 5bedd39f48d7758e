//! The numbers of a step, as the journal keeps them and `status` shows them.

use std::collections::BTreeMap;

use clawhost_journal::SampleId;
use serde::Serialize;

use crate::batch::{ALONE, Batch, LEVEL, NO_HINT, NO_REWARD};
use crate::component::Told;
use crate::forced::FORCED;
use crate::loss::Mismatch;
use crate::proof::Proof;
use crate::report::{Report, SampleReport};

/// How far the trainer's log-probs were from the engine's.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Gap {
    pub(crate) samples: usize,
    pub(crate) tokens: usize,
    /// Mean |trainer − engine|; in f32 and on the same engine expect less than 1e-4.
    pub(crate) mean: f64,
    pub(crate) max: f64,
    /// Mean k3 estimate of how far the engine's distribution is from the trainer's.
    pub(crate) divergence: f64,
    /// Largest exp(trainer − engine), before any bound.
    pub(crate) max_weight: f64,
}

impl Gap {
    fn of(samples: usize, mismatch: &Mismatch) -> Self {
        Self {
            samples,
            tokens: mismatch.tokens(),
            mean: mismatch.mean(),
            max: mismatch.max(),
            divergence: mismatch.divergence(),
            max_weight: mismatch.max_weight(),
        }
    }
}

/// The metrics of one step. Keys that a step did not reach are absent.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Metrics {
    pub(crate) samples: usize,
    pub(crate) dropped: usize,
    pub(crate) dropped_stale: usize,
    pub(crate) without_signal: usize,
    /// Samples that left the queue without training, by the kind of reason.
    pub(crate) dropped_by: BTreeMap<&'static str, usize>,
    /// Groups that left the queue because all their rewards are the same.
    pub(crate) constant_groups: usize,
    /// Samples with a reward, and samples with a hint that a teacher can read.
    pub(crate) rewarded: usize,
    pub(crate) hinted: usize,
    pub(crate) reward_mean: f64,
    /// What was added to the rewards for overlong replies, on average.
    pub(crate) shaping_mean: f64,
    pub(crate) advantage_mean: f64,
    pub(crate) advantage_absolute: f64,
    pub(crate) staleness_mean: f64,
    pub(crate) staleness_max: u64,
    /// Components that were asked instead of the native formulas, by what they are for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) components: BTreeMap<&'static str, Told>,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub(crate) update: Option<UpdateMetrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change_norm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<Proof>,
    /// Reading the queue and estimating advantages.
    pub(crate) draw_seconds: f64,
    /// Writing the checkpoint, and proving what was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof_seconds: Option<f64>,
    pub(crate) seconds: f64,
}

/// The part that the update gives.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct UpdateMetrics {
    updates: u64,
    learning_rate: f64,
    loss_first: f64,
    loss_last: f64,
    clip_fraction: f64,
    kl_reference: f64,
    kl_old: f64,
    entropy: f64,
    gradient_norm: f64,
    /// Trainer against engine over all samples, older versions included.
    mismatch: Gap,
    /// Trainer against engine where both used the same adapter.
    parity: Gap,
    effective_sample_share: f64,
    reply_tokens: usize,
    /// Of these, tokens at which a constraint left no choice: they did not train.
    forced_tokens: usize,
    all_tokens: usize,
    /// Mean of lT - lo over the replies that a teacher read; absent where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher_gap: Option<f64>,
    /// Replies that a teacher was asked about and said nothing of; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher_silent: Option<usize>,
    reference_seconds: f64,
    teacher_seconds: f64,
    update_seconds: f64,
    tokens_per_second: f64,
    /// Numbers of the loss component, under its own names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    loss_component: BTreeMap<String, f64>,
    /// What each sample of the batch did.
    #[serde(rename = "samples_moved")]
    moved: Vec<SampleReport>,
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
impl Metrics {
    pub(crate) fn of(batch: &Batch) -> Self {
        let count = batch.chosen.len().max(1) as f64;
        let mean = |value: &dyn Fn(&crate::batch::Chosen) -> f64| {
            batch.chosen.iter().map(value).sum::<f64>() / count
        };
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
            dropped_by: kinds(batch.dropped.iter().map(|(_, reason)| reason.as_str())),
            constant_groups: batch.constant_groups,
            rewarded: rewards.len(),
            hinted: batch.chosen.iter().filter(|c| !c.hinted.is_empty()).count(),
            reward_mean: rewards.iter().sum::<f64>() / rewards.len().max(1) as f64,
            shaping_mean: batch.shaping / rewards.len().max(1) as f64,
            advantage_mean: mean(&|c| c.advantage.unwrap_or(0.0)),
            advantage_absolute: mean(&|c| c.advantage.map_or(0.0, f64::abs)),
            staleness_mean: mean(&|c| c.staleness as f64),
            staleness_max: batch.chosen.iter().map(|c| c.staleness).max().unwrap_or(0),
            ..Self::default()
        }
    }

    /// The mean advantage that a sample was trained with, from rewards and gaps.
    pub(crate) fn advantage_of(&self, sample: SampleId) -> Option<f64> {
        let rows = &self.update.as_ref()?.moved;
        Some(rows.iter().find(|row| row.sample == sample)?.advantage)
    }

    pub(crate) fn take(&mut self, report: &Report) {
        self.update = Some(UpdateMetrics {
            updates: report.updates,
            learning_rate: report.learning_rate,
            loss_first: report.first_loss,
            loss_last: report.last_loss,
            clip_fraction: report.clipped,
            kl_reference: report.divergence,
            kl_old: report.drift,
            entropy: report.entropy,
            gradient_norm: report.gradient_norm,
            mismatch: Gap::of(self.samples, &report.mismatch),
            parity: Gap::of(report.parity_samples, &report.parity),
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
            loss_component: report.told.clone(),
            moved: report.samples.clone(),
        });
    }
}

/// How often each kind of reason was given.
fn kinds<'a>(reasons: impl Iterator<Item = &'a str>) -> BTreeMap<&'static str, usize> {
    const KINDS: [(&str, &str); 7] = [
        ("stale", "stale:"),
        ("unusable", "unusable:"),
        ("alone", ALONE),
        ("level", LEVEL),
        ("no_reward", NO_REWARD),
        ("no_hint", NO_HINT),
        ("forced", FORCED),
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

/// Over the replies, each as much as the other.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn teacher_gap(report: &Report) -> Option<f64> {
    let gaps: Vec<f64> = report.samples.iter().filter_map(|s| s.gap).collect();
    (!gaps.is_empty()).then(|| gaps.iter().sum::<f64>() / gaps.len() as f64)
}
