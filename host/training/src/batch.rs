//! Builds the batch of a step: which queued samples train, and with which advantage.
//!
//! Every dropped sample has a reason: a sample that is stale, unusable or without a training signal leaves the queue with
//! the reason and does not count towards the batch size. This module does not use the model.

mod comparison;
mod drop_reason;
#[cfg(test)]
mod tests;

use clawhost_journal::{SampleId, SampleRecord};
use clawhost_plugins::Fault as ComponentFault;

use crate::advantage::{
    Advantage, AdvantageEstimate, Baselines, EstimatorConfig, OverlongPenalty, RewardedSample,
};
use crate::batch_sample::BatchSample;
use crate::component::{AdvantageComponent, StepComponent};
use crate::forced_tokens::{self, DROP_FORCED};
use crate::hints::DistillationPrompts;
use crate::lineage::Lineage;
use crate::reward_shaping::{episode_weight, is_episode, shape_reward, whiten_batch};
use clawhost_config::TrainingMethod;
use comparison::{comparison_sets, drop_growing_groups};
pub(crate) use drop_reason::stale_reason;
use drop_reason::{DropReason, drop_reason, staleness};

/// Requirements on the samples of a batch, and its size.
pub(crate) struct BatchRules<'a> {
    /// The training signal: rewards, hints or both.
    pub(crate) method: TrainingMethod,
    /// Renders the prompts that a sample is distilled with, or says why it cannot be distilled.
    pub(crate) prompts: &'a dyn Fn(&SampleRecord) -> Result<DistillationPrompts, String>,
    /// The estimator of conversations.
    pub(crate) estimator_config: EstimatorConfig,
    /// The estimator of episodes; it compares groups.
    pub(crate) episode_estimator: EstimatorConfig,
    /// Penalty on overlong replies.
    pub(crate) overlong: Option<OverlongPenalty>,
    /// Whether the advantages of the batch's conversations are whitened.
    pub(crate) whitens: bool,
    /// Whether the advantages of the batch's episodes are whitened.
    pub(crate) whitens_episodes: bool,
    /// A positive reward with a smaller |advantage| gives no signal.
    pub(crate) min_advantage: f64,
    /// Replaces the estimator.
    pub(crate) component: Option<StepComponent<'a, AdvantageComponent>>,
    pub(crate) batch: usize,
    pub(crate) max_staleness: u64,
    pub(crate) max_tokens: usize,
    pub(crate) vocabulary: usize,
    pub(crate) active: u64,
    pub(crate) lineage: &'a Lineage,
    /// For estimators that compare groups: a group with a sample newer than this stays in the queue.
    pub(crate) group_cutoff_ms: i64,
}

impl BatchRules<'_> {
    /// The estimator of this sample.
    fn estimator_of(&self, sample: &SampleRecord) -> &EstimatorConfig {
        if is_episode(sample) {
            &self.episode_estimator
        } else {
            &self.estimator_config
        }
    }

    /// Whether this sample is compared with its group.
    fn needs_group(&self, sample: &SampleRecord) -> bool {
        self.method.uses_rewards()
            && (self.component.is_some() || self.estimator_of(sample).estimator.needs_groups())
    }

    /// Estimates advantages: one entry for each sample with a reward. The samples have the same estimator.
    fn estimate(
        &self,
        samples: &[SampleRecord],
        baselines: &Baselines,
    ) -> Result<Vec<AdvantageEstimate>, ComponentFault> {
        if !self.method.uses_rewards() {
            return Ok(Vec::new());
        }
        if let Some(step_component) = &self.component {
            let seen: Vec<(&str, usize, f32)> = samples
                .iter()
                .filter_map(|s| {
                    #[allow(
                        clippy::cast_possible_truncation,
                        reason = "a component reads rewards in f32, as judges give them"
                    )]
                    let reward = self.reward(s)?.reward as f32;
                    Some((s.group.as_str(), s.token_ids.len(), reward))
                })
                .collect();
            if seen.is_empty() {
                return Ok(Vec::new());
            }
            // One value per token, so that later processing leaves the component's advantages alone.
            let lengths: Vec<usize> = seen.iter().map(|(_, length, _)| *length).collect();
            let estimates = step_component.component.estimate(
                &seen,
                step_component.step,
                step_component.receipts,
            )?;
            return Ok(estimates
                .into_iter()
                .zip(lengths)
                .map(|(one, length)| one.broadcast(length))
                .collect());
        }
        let rewarded: Vec<RewardedSample<'_>> =
            samples.iter().filter_map(|s| self.reward(s)).collect();
        let Some(first) = samples.first() else {
            return Ok(Vec::new());
        };
        let estimator = self.estimator_of(first);
        Ok(estimator.estimate_tokens(&rewarded, baselines))
    }

    /// The sample with its shaped reward; none without a reward.
    fn reward<'s>(&self, sample: &'s SampleRecord) -> Option<RewardedSample<'s>> {
        Some(shape_reward(sample, sample.reward?, self.overlong.as_ref()))
    }
}

/// The batch of a step and the samples that leave the queue with it.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) chosen: Vec<BatchSample>,
    pub(crate) dropped: Vec<(SampleId, String)>,
    /// The reward baselines after this batch.
    pub(crate) baselines: Baselines,
    /// Samples that were dropped as stale.
    pub(crate) stale: usize,
    /// Samples that were dropped without a training signal.
    pub(crate) without_signal: usize,
    /// Dropped groups of two or more samples with equal rewards.
    pub(crate) constant_groups: usize,
    /// Sum of the overlong penalties (0 or less) of the batch.
    pub(crate) shaping: f64,
}

// Reasons for dropping a sample without a training signal.
pub(crate) const DROP_SINGLETON_GROUP: &str = "no signal: the only sample of its group";
pub(crate) const DROP_ZERO_ADVANTAGE: &str =
    "no signal: its reward is what was expected (advantage 0)";
pub(crate) const DROP_NO_REWARD: &str = "no signal: it has no reward";
pub(crate) const DROP_NO_HINT: &str = "no signal: it has no hint";

impl Batch {
    /// A batch without samples, which keeps the reward baselines.
    fn empty(baselines: &Baselines) -> Self {
        Self {
            chosen: Vec::new(),
            dropped: Vec::new(),
            baselines: baselines.clone(),
            stale: 0,
            without_signal: 0,
            constant_groups: 0,
            shaping: 0.0,
        }
    }

    /// A batch that only drops stale samples; none if there are none.
    pub(crate) fn from_stale(
        stale: Vec<(SampleId, String)>,
        baselines: &Baselines,
    ) -> Option<Self> {
        let empty = Self::empty(baselines);
        (!stale.is_empty()).then(|| empty.with_stale(stale))
    }

    /// Also drops these stale samples.
    pub(crate) fn with_stale(mut self, stale: Vec<(SampleId, String)>) -> Self {
        self.stale += stale.len();
        self.dropped.extend(stale);
        self
    }

    /// Adds a sample to the batch, or drops it with a reason if it has no training signal. `estimate` is none if it has no
    /// reward, or the method uses none.
    fn add(
        &mut self,
        mut sample: SampleRecord,
        estimate: Option<AdvantageEstimate>,
        rules: &BatchRules<'_>,
    ) {
        if forced_tokens::covers_reply(&sample) {
            self.without_signal += 1;
            self.dropped.push((sample.id, DROP_FORCED.to_owned()));
            return;
        }
        let prompts = if rules.method.uses_hints() {
            (rules.prompts)(&sample)
        } else {
            Ok(DistillationPrompts::default())
        };
        let (advantage, token_advantages) = match estimate {
            Some(AdvantageEstimate { advantage, tokens }) => match advantage {
                Advantage::Value(advantage) => (Ok(advantage), tokens),
                Advantage::SingletonGroup => (Err(DROP_SINGLETON_GROUP), None),
                Advantage::Zero => (Err(DROP_ZERO_ADVANTAGE), None),
            },
            None if rules.method.uses_rewards() => (Err(DROP_NO_REWARD), None),
            None => (Err(DROP_NO_HINT), None),
        };
        let prompts = match prompts {
            Ok(prompts) => prompts,
            Err(reason) if advantage.is_err() => {
                self.dropped
                    .push((sample.id, format!("unusable: {reason}")));
                return;
            }
            Err(reason) => {
                tracing::warn!(sample = %sample.id, reason, "the sample's hint is unusable; it trains on its reward alone");
                DistillationPrompts::default()
            }
        };
        let advantage = match advantage {
            Err(no_signal) if prompts.teacher.is_empty() => {
                self.without_signal += 1;
                self.dropped.push((sample.id, no_signal.to_owned()));
                return;
            }
            advantage => advantage.ok(),
        };
        let staleness =
            staleness(&sample, rules).expect("a sample of an unknown version was dropped as stale");
        if let (Some(overlong), Some(_)) = (&rules.overlong, advantage) {
            self.shaping += overlong.shaping::<f64>(sample.token_ids.len());
        }
        let off_policy = prompts.policy.is_some();
        if let Some(prompt_ids) = prompts.policy {
            sample.prompt_ids = prompt_ids;
        }
        self.chosen.push(BatchSample {
            sample,
            advantage,
            token_advantages,
            hinted: prompts.teacher,
            off_policy,
            staleness,
        });
    }
}

/// Builds a batch from queued samples, in their order. None if every sample belongs to a group that may still grow.
///
/// # Errors
/// The advantage component failed.
pub(crate) fn build_batch(
    queue: Vec<SampleRecord>,
    rules: &BatchRules<'_>,
    baselines: &Baselines,
) -> Result<Option<Batch>, ComponentFault> {
    let mut batch = Batch::empty(baselines);
    let queue = drop_growing_groups(queue, rules);
    if queue.is_empty() {
        return Ok(None);
    }
    let mut seen: Vec<(String, f64)> = Vec::new();
    // Reward and advantage of each sample with a reward.
    let mut signals: Vec<(f64, f64)> = Vec::new();
    for candidates in comparison_sets(queue, rules) {
        if batch.chosen.len() >= rules.batch {
            break;
        }
        let mut usable = Vec::new();
        for sample in candidates {
            match drop_reason(&sample, rules) {
                Some(DropReason::Stale(reason)) => {
                    batch.stale += 1;
                    batch.dropped.push((sample.id, reason));
                }
                Some(DropReason::Unusable(reason)) => batch.dropped.push((sample.id, reason)),
                None => usable.push(sample),
            }
        }
        let estimates = rules.estimate(&usable, baselines)?;
        let compares_group = usable.first().is_some_and(|one| rules.needs_group(one));
        if compares_group && rules.component.is_none() {
            let is_zero = |one: &AdvantageEstimate| one.advantage == Advantage::Zero;
            batch.constant_groups +=
                usize::from(estimates.len() > 1 && estimates.iter().all(is_zero));
        }
        let mut estimates = estimates.into_iter();
        for sample in usable {
            let estimate = match rules.reward(&sample) {
                Some(rewarded) if rules.method.uses_rewards() => {
                    seen.push((sample.baseline_key.clone(), rewarded.reward));
                    let estimate = estimates.next().expect("one estimate per rewarded sample");
                    let estimate = estimate.with_threshold(rewarded.reward, rules.min_advantage);
                    let advantage = match estimate.advantage {
                        Advantage::Value(advantage) => advantage,
                        Advantage::Zero | Advantage::SingletonGroup => 0.0,
                    };
                    signals.push((rewarded.reward, advantage));
                    Some(estimate)
                }
                _ => None,
            };
            batch.add(sample, estimate, rules);
        }
    }
    if rules.component.is_none() {
        if rules.whitens {
            whiten_batch(&mut batch.chosen, |sample| !is_episode(sample));
        }
        if rules.whitens_episodes {
            whiten_batch(&mut batch.chosen, is_episode);
        }
    }
    apply_weights(&mut batch.chosen);
    batch.baselines = baselines
        .after(seen.iter().map(|(key, reward)| (key.as_str(), *reward)))
        .after_signals(&signals);
    Ok(Some(batch))
}

/// Scales the advantages of episodes by the weight of their environment, last of all.
fn apply_weights(chosen: &mut [BatchSample]) {
    for one in chosen {
        let weight = episode_weight(&one.sample);
        one.advantage = one.advantage.map(|advantage| advantage * weight);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "losses are computed in f32, as the parameters are"
        )]
        for advantage in one.token_advantages.iter_mut().flatten() {
            *advantage *= weight as f32;
        }
    }
}
