//! Builds the batch of a step: which queued samples train, and with which advantage.
//!
//! Every dropped sample has a reason: a sample that is stale, unusable or without a training signal leaves the queue with
//! the reason and does not count towards the batch size. This module does not use the model.

use std::collections::{BTreeSet, HashMap};

use clawhost_journal::{STALE_PREFIX, SampleId, SampleRecord};
use clawhost_plugins::Fault as ComponentFault;

use crate::advantage::{
    Advantage, AdvantageEstimate, Baselines, ComparisonScope, EstimatorConfig, OverlongPenalty,
    RewardedSample,
};
use crate::batch_sample::BatchSample;
use crate::component::{AdvantageComponent, StepComponent};
use crate::forced_tokens::{self, DROP_FORCED};
use crate::hints::DistillationPrompts;
use crate::lineage::Lineage;
use crate::reward_shaping::{
    episode_weight, is_episode, missing_input, shape_reward, whiten_batch,
};
use clawhost_config::TrainingMethod;

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

/// Splits the queue into sets whose advantages are estimated together: single samples, groups, or one batch.
fn comparison_sets(queue: Vec<SampleRecord>, rules: &BatchRules<'_>) -> Vec<Vec<SampleRecord>> {
    if rules.component.is_some() {
        // A component gets one batch of complete groups.
        let mut all: Vec<SampleRecord> = Vec::new();
        for group in by_group(queue) {
            if all.len() < rules.batch {
                all.extend(group);
            }
        }
        return vec![all];
    }
    let mut sets: Vec<Vec<SampleRecord>> = Vec::new();
    // Index in `sets` of each group, and of the conversations of the batch.
    let mut groups: HashMap<(bool, String), usize> = HashMap::new();
    let mut conversations = None;
    for sample in queue {
        let next = sets.len();
        let index = match rules.estimator_of(&sample).estimator.comparison_scope() {
            ComparisonScope::Sample => next,
            ComparisonScope::Batch => *conversations.get_or_insert(next),
            ComparisonScope::Group => {
                let group = (is_episode(&sample), sample.group.clone());
                *groups.entry(group).or_insert(next)
            }
        };
        match sets.get_mut(index) {
            // What does not fit the batch stays in the queue.
            Some(set) if conversations == Some(index) && set.len() >= rules.batch => {}
            Some(set) => set.push(sample),
            None => sets.push(vec![sample]),
        }
    }
    sets
}

/// Groups samples, in the order of the groups' first samples.
fn by_group(queue: Vec<SampleRecord>) -> Vec<Vec<SampleRecord>> {
    let mut groups: Vec<Vec<SampleRecord>> = Vec::new();
    for sample in queue {
        match groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|s| s.group == sample.group))
        {
            Some(group) => group.push(sample),
            None => groups.push(vec![sample]),
        }
    }
    groups
}

/// Removes samples of groups that may still grow. Those of episodes are in the queue only when their groups are complete.
fn drop_growing_groups(queue: Vec<SampleRecord>, rules: &BatchRules<'_>) -> Vec<SampleRecord> {
    let growing: BTreeSet<String> = queue
        .iter()
        .filter(|one| {
            rules.needs_group(one) && !is_episode(one) && one.created_ms > rules.group_cutoff_ms
        })
        .map(|sample| sample.group.clone())
        .collect();
    queue
        .into_iter()
        .filter(|one| !(rules.needs_group(one) && growing.contains(&one.group)))
        .collect()
}

/// Why a sample cannot train, as the text recorded in the journal.
enum DropReason {
    Stale(String),
    Unusable(String),
}

fn staleness(sample: &SampleRecord, rules: &BatchRules<'_>) -> Option<u64> {
    rules.lineage.distance(rules.active, sample.adapter_version)
}

/// Checks whether a sample can train, before its advantage is estimated.
fn drop_reason(sample: &SampleRecord, rules: &BatchRules<'_>) -> Option<DropReason> {
    let unusable = |reason: String| Some(DropReason::Unusable(format!("unusable: {reason}")));
    let tokens = sample.token_ids.len();
    if tokens == 0 || sample.prompt_ids.is_empty() {
        return unusable("it has no prompt tokens or no reply tokens".to_owned());
    }
    if sample.full_logprobs.len() != tokens {
        return unusable(format!(
            "{} log-probs for {tokens} tokens",
            sample.full_logprobs.len()
        ));
    }
    if !sample.full_logprobs.iter().all(|lp| lp.is_finite()) {
        return unusable("a recorded log-prob is not finite".to_owned());
    }
    if sample.reward.is_some_and(|reward| !reward.is_finite()) {
        return unusable("its reward is not finite".to_owned());
    }
    if !(sample.temperature.is_finite() && sample.temperature >= 0.0) {
        return unusable(format!("temperature {}", sample.temperature));
    }
    if rules.method.uses_rewards()
        && rules.component.is_none()
        && let Some(reason) = missing_input(rules.estimator_of(sample).estimator, sample)
    {
        return unusable(reason.to_owned());
    }
    let total = sample.prompt_ids.len() + tokens;
    if total > rules.max_tokens {
        return unusable(format!(
            "{total} tokens; training.max_sample_tokens allows {}",
            rules.max_tokens
        ));
    }
    let out_of_vocabulary = sample
        .prompt_ids
        .iter()
        .chain(&sample.token_ids)
        .find(|&&id| usize::try_from(id).is_ok_and(|id| id >= rules.vocabulary));
    if let Some(id) = out_of_vocabulary {
        return unusable(format!(
            "token {id} is outside of the model's vocabulary of {}",
            rules.vocabulary
        ));
    }
    let distance = staleness(sample, rules);
    stale_reason(distance, sample.adapter_version, rules.max_staleness).map(DropReason::Stale)
}

/// The drop reason of a sample whose adapter is more than `max_staleness` versions away; none if it is fresh. A distance
/// of none means that the journal does not know the version.
pub(crate) fn stale_reason(
    distance: Option<u64>,
    version: u64,
    max_staleness: u64,
) -> Option<String> {
    match distance {
        None => Some(format!(
            "{STALE_PREFIX} sampled by adapter version {version}, which the journal does not know"
        )),
        Some(distance) if distance > max_staleness => Some(format!(
            "{STALE_PREFIX} sampled more than {max_staleness} versions away from the active adapter (training.max_staleness)"
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::Estimator;
    use crate::tests::sample;

    fn rules(lineage: &Lineage, estimator: Estimator) -> BatchRules<'_> {
        BatchRules {
            method: TrainingMethod::Binary,
            prompts: &|_| Ok(DistillationPrompts::default()),
            estimator_config: estimator.into(),
            episode_estimator: Estimator::Step.into(),
            overlong: None,
            whitens: false,
            whitens_episodes: false,
            min_advantage: 0.0,
            component: None,
            batch: 2,
            max_staleness: 4,
            max_tokens: 64,
            vocabulary: 100,
            active: 0,
            lineage,
            group_cutoff_ms: 1_000,
        }
    }

    fn ids(batch: &Batch) -> (Vec<i64>, Vec<i64>) {
        (
            batch.chosen.iter().map(|c| c.sample.id.0).collect(),
            batch.dropped.iter().map(|(id, _)| id.0).collect(),
        )
    }

    #[test]
    fn a_batch_is_filled_past_samples_without_signal() {
        let lineage = Lineage::default();
        let queue = vec![
            sample(1, 0.0),
            sample(2, 1.0),
            sample(3, 0.0),
            sample(4, -1.0),
            sample(5, 1.0),
        ];
        let batch = build_batch(
            queue,
            &rules(&lineage, Estimator::Raw),
            &Baselines::new(0.5, 0.0),
        )
        .unwrap()
        .unwrap();
        assert_eq!(ids(&batch), (vec![2, 4], vec![1, 3]));
        assert_eq!(batch.without_signal, 2);
    }

    #[test]
    fn baselines_include_dropped_samples() {
        let lineage = Lineage::default();
        let queue = vec![
            sample(1, 0.0),
            sample(2, 1.0),
            sample(3, 1.0),
            sample(4, -1.0),
        ];
        let before = Baselines::new(0.5, 0.0).after([("default", 0.0)]);
        let batch = build_batch(queue, &rules(&lineage, Estimator::Baseline), &before)
            .unwrap()
            .unwrap();
        assert_eq!(ids(&batch), (vec![2, 3], vec![1]));
        let mean = batch.baselines.mean("default");
        assert!((mean - 1.0 / 3.0).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn a_reply_accepted_as_expected_gives_no_signal() {
        let lineage = Lineage::default();
        let queue = vec![sample(1, 1.0), sample(2, -1.0)];
        let before = Baselines::new(0.5, 0.0).after([("default", 0.9)]);
        let rules = BatchRules {
            min_advantage: 0.2,
            ..rules(&lineage, Estimator::Baseline)
        };
        let batch = build_batch(queue, &rules, &before).unwrap().unwrap();
        assert_eq!(ids(&batch), (vec![2], vec![1]));
        assert_eq!(batch.baselines.signal(), 0.75);
    }

    #[test]
    fn unusable_samples_are_dropped_with_a_reason() {
        let lineage = Lineage::default();
        let mut bad = vec![
            sample(1, 1.0),
            sample(2, 1.0),
            sample(3, f32::NAN),
            sample(4, 1.0),
            sample(5, 1.0),
            sample(6, 1.0),
        ];
        bad[0].token_ids.clear();
        bad[1].full_logprobs.pop();
        bad[3].token_ids[0] = 100;
        bad[4].prompt_ids = vec![1; 64];
        bad[5].adapter_version = 7;
        let batch = build_batch(
            bad,
            &rules(&lineage, Estimator::Raw),
            &Baselines::new(0.5, 0.0),
        )
        .unwrap()
        .unwrap();
        assert!(batch.chosen.is_empty());
        let reasons: Vec<&str> = batch.dropped.iter().map(|(_, r)| r.as_str()).collect();
        for (i, part) in [
            "no prompt tokens or no reply",
            "1 log-probs for 2 tokens",
            "reward is not finite",
            "outside of the model's vocabulary of 100",
            "max_sample_tokens allows 64",
            "the journal does not know",
        ]
        .iter()
        .enumerate()
        {
            assert!(reasons[i].contains(part), "{reasons:?}");
        }
        assert_eq!(batch.stale, 1);
    }

    #[test]
    fn groups_are_batched_whole_and_only_after_they_stop_growing() {
        let lineage = Lineage::default();
        let grouped = |id, reward, group: &str, created_ms| {
            let mut s = sample(id, reward);
            s.group = group.to_owned();
            s.created_ms = created_ms;
            s
        };
        let queue = vec![
            grouped(1, 1.0, "growing", 0),
            grouped(2, 1.0, "a", 0),
            grouped(3, 0.5, "constant", 0),
            grouped(4, -1.0, "a", 5),
            grouped(5, 0.5, "constant", 5),
            grouped(6, 0.0, "a", 6),
            grouped(7, -1.0, "growing", 2_000),
            grouped(8, 1.0, "singleton", 7),
        ];
        let rules = rules(&lineage, Estimator::Group);
        let batch = build_batch(queue.clone(), &rules, &Baselines::new(0.5, 0.0))
            .unwrap()
            .unwrap();
        assert_eq!(ids(&batch), (vec![2, 4], vec![6]));
        let growing = vec![queue[0].clone(), queue[6].clone()];
        let waiting = build_batch(growing, &rules, &Baselines::new(0.5, 0.0)).unwrap();
        assert!(waiting.is_none());
    }

    #[test]
    fn episodes_are_compared_within_their_group_beside_conversations() {
        let lineage = Lineage::default();
        // A group of episodes does not wait: it is in the queue when it is complete.
        let episode = |id, reward| {
            let mut one = sample(id, reward);
            one.group = "env/round-1/sum".to_owned();
            one.created_ms = 2_000;
            one.provenance.episode = Some(clawhost_journal::EpisodeStep {
                trajectory: id.to_string(),
                step: 0,
                votes: Vec::new(),
                judged: false,
                weight: 1.0,
            });
            one
        };
        // The group of a conversation does not matter to an estimator that compares no groups.
        let mut live = sample(3, 0.5);
        live.created_ms = 2_000;
        let rules = BatchRules {
            batch: 8,
            whitens: true,
            ..rules(&lineage, Estimator::Raw)
        };
        let baselines = Baselines::new(0.5, 0.0);
        let queue = vec![episode(1, 1.0), live, sample(4, -0.5), episode(2, 0.0)];
        let batch = build_batch(queue, &rules, &baselines).unwrap().unwrap();
        let found: Vec<(i64, f64)> = batch
            .chosen
            .iter()
            .map(|one| (one.sample.id.0, one.advantage.unwrap()))
            .collect();
        let half = 1.0 / std::f64::consts::SQRT_2;
        for ((id, advantage), expected) in
            found
                .iter()
                .zip([(1, half), (2, -half), (3, 1.0), (4, -1.0)])
        {
            // The conversations are whitened, the episodes are not.
            assert_eq!(*id, expected.0);
            assert!((advantage - expected.1).abs() < 1e-5, "{found:?}");
        }
        // The weight of an environment scales its advantages.
        let mut light = [episode(1, 1.0), episode(2, 0.0)];
        for one in &mut light {
            one.provenance.episode.as_mut().unwrap().weight = 0.25;
        }
        let light = build_batch(light.to_vec(), &rules, &baselines);
        let light = light.unwrap().unwrap().chosen[1].advantage.unwrap();
        assert!((light + half / 4.0).abs() < 1e-5, "{light}");
    }

    #[test]
    fn votes_on_steps_join_the_outcome_with_their_coefficient() {
        let lineage = Lineage::default();
        let episode = |id, reward, votes: &[f64]| {
            let mut one = sample(id, reward);
            one.group = "env/round-1/sum".to_owned();
            one.provenance.episode = Some(clawhost_journal::EpisodeStep {
                trajectory: id.to_string(),
                step: 0,
                votes: votes.to_vec(),
                judged: true,
                weight: 1.0,
            });
            one
        };
        let advantages = |step_coefficient| {
            let rules = BatchRules {
                batch: 8,
                episode_estimator: EstimatorConfig {
                    step_coefficient,
                    ..Estimator::Step.into()
                },
                ..rules(&lineage, Estimator::Raw)
            };
            let queue = vec![
                episode(1, 1.0, &[1.0]),
                episode(2, -1.0, &[0.5, -0.5]),
                episode(3, -1.0, &[-1.0]),
                // Its judge gave no vote, so it is part of no mean.
                episode(4, 1.0, &[]),
            ];
            let batch = build_batch(queue, &rules, &Baselines::new(0.5, 0.0));
            let batch = batch.unwrap().unwrap();
            let (id, reason) = &batch.dropped[0];
            assert_eq!((id.0, batch.dropped.len()), (4, 1));
            assert!(reason.contains("not a vote of 0"), "{reason}");
            let mut found: Vec<(i64, f64)> = batch
                .chosen
                .iter()
                .map(|one| (one.sample.id.0, one.advantage.unwrap()))
                .collect();
            found.sort_by_key(|(id, _)| *id);
            found
        };
        // Scores 1.2, -1 and -1.2: mean -1/3, deviation sqrt(1.773333) = 1.331666.
        let judged = [1.151440, -0.500626, -0.650813];
        // Scores 1, -1 and -1: mean -1/3, deviation sqrt(4/3) = 1.154701.
        let outcome = [1.154700, -0.577350, -0.577350];
        for (coefficient, expected) in [(0.2, judged), (0.0, outcome)] {
            let found = advantages(coefficient);
            for ((_, advantage), expected) in found.iter().zip(expected) {
                assert!(
                    (advantage - expected).abs() < 1e-5,
                    "{coefficient}: {found:?}"
                );
            }
        }
    }
}
