//! The advantages of the next batch with the recorded and with the replayed rewards.
//!
//! Samples are selected from the queue as in training and estimated with the configured estimator and its running
//! means, or by the component that replaces it. A sample that trains on its hint alone has no reward and no advantage
//! here. Samples that are too stale for the next step are left out; checks that training makes only at the start of the
//! step (length, for example) are not made here.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use clawhost_journal::{Journal, SampleRecord, TurnId};
use clawhost_training::advantage::{
    Advantage, Baselines, ComparisonScope, Estimator, EstimatorConfig, RewardedSample,
};
use clawhost_training::{Components, TrainingOptions, select_next_samples, shaped_sample};
use serde::Serialize;

/// Journal meta key of training's running baselines.
const BASELINES: &str = "training.baselines";

/// Why a sample has no reward although it can be trained on.
pub(super) const HINT_ONLY: &str = "trains on its hint alone";

/// The replayed rewards of a turn.
pub(super) struct ReplayedReward {
    /// The new reward, or why there is none.
    pub(super) new: Result<f32, String>,
    /// Whether the new verdict is neutral (reward 0).
    pub(super) neutral: bool,
    /// The reward by the judge compared with; None if that is the record.
    pub(super) old: Option<Result<f32, String>>,
    /// Whether that verdict is neutral.
    pub(super) old_neutral: bool,
}

/// A queued sample, before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SampleChange {
    pub(super) sample: i64,
    pub(super) turn: i64,
    pub(super) old: SampleEstimate,
    pub(super) new: SampleEstimate,
}

/// Reward and advantage of a queued sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SampleEstimate {
    /// None if it would not be queued.
    pub(super) reward: Option<f32>,
    /// None if it would not be in the next batch.
    pub(super) advantage: Option<f64>,
    /// Why not.
    pub(super) why: Option<String>,
}

/// The advantages of the next batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct NextBatch {
    pub(super) estimator: Estimator,
    /// The component that replaces the estimator.
    pub(super) component: Option<String>,
    pub(super) batch: usize,
    pub(super) samples: Vec<SampleChange>,
}

/// Estimates the next batch with the recorded and with the replayed rewards.
pub(super) fn next_batch(
    journal: &Journal,
    options: &TrainingOptions,
    components: &Components,
    judged: &BTreeMap<TurnId, ReplayedReward>,
) -> Result<NextBatch> {
    let queue = select_next_samples(journal, options)?;
    let mut baselines = Baselines::new(options.baseline_rate, options.initial_baseline);
    if let Some(text) = journal.meta(BASELINES)? {
        baselines = baselines.with_json(&text)?;
    }
    let old: Vec<_> = queue.iter().map(|s| reward_before(s, judged)).collect();
    let new: Vec<_> = queue.iter().map(|s| reward_after(s, judged)).collect();
    let estimation = BatchEstimation {
        options,
        baselines: &baselines,
        components,
    };
    let (old, new) = (
        estimation.estimate_samples(&queue, old)?,
        estimation.estimate_samples(&queue, new)?,
    );
    let samples = queue
        .iter()
        .zip(old.into_iter().zip(new))
        .map(|(sample, (old, new))| SampleChange {
            sample: sample.id.0,
            turn: sample.turn.0,
            old,
            new,
        })
        .collect();
    Ok(NextBatch {
        estimator: options.estimator,
        component: components.estimator(),
        batch: options.batch_size,
        samples,
    })
}

fn reward_after(
    sample: &SampleRecord,
    judged: &BTreeMap<TurnId, ReplayedReward>,
) -> Result<f32, String> {
    match judged.get(&sample.turn) {
        Some(reward) => keep_neutral(sample, &reward.new, reward.neutral),
        None => recorded_reward(sample),
    }
}

fn reward_before(
    sample: &SampleRecord,
    judged: &BTreeMap<TurnId, ReplayedReward>,
) -> Result<f32, String> {
    match judged
        .get(&sample.turn)
        .and_then(|j| Some((j, j.old.as_ref()?)))
    {
        Some((reward, old)) => keep_neutral(sample, old, reward.old_neutral),
        None => recorded_reward(sample),
    }
}

/// The recorded reward.
fn recorded_reward(sample: &SampleRecord) -> Result<f32, String> {
    sample.reward.ok_or_else(|| HINT_ONLY.to_owned())
}

/// A turn that stands for its neutral session stays queued as long as it is neutral.
fn keep_neutral(
    sample: &SampleRecord,
    reward: &Result<f32, String>,
    neutral: bool,
) -> Result<f32, String> {
    match reward {
        Err(_) if neutral && sample.provenance.chosen.is_some() => Ok(0.0),
        reward => reward.clone(),
    }
}

/// The inputs of advantage estimation.
struct BatchEstimation<'a> {
    options: &'a TrainingOptions,
    baselines: &'a Baselines,
    components: &'a Components,
}

impl BatchEstimation<'_> {
    /// Reward and advantage of each queued sample with these rewards.
    fn estimate_samples(
        &self,
        queue: &[SampleRecord],
        rewards: Vec<Result<f32, String>>,
    ) -> Result<Vec<SampleEstimate>> {
        let mut estimates: Vec<SampleEstimate> = rewards
            .into_iter()
            .map(|reward| SampleEstimate {
                reward: reward.as_ref().ok().copied(),
                advantage: None,
                why: Some(
                    reward
                        .err()
                        .unwrap_or_else(|| "the batch is full".to_owned()),
                ),
            })
            .collect();
        let mut in_batch = 0;
        for unit in self.estimation_units(queue, &estimates) {
            if in_batch >= self.options.batch_size {
                break;
            }
            let rewarded: Vec<(&SampleRecord, f32)> = unit
                .iter()
                .filter_map(|at| Some((queue.get(*at)?, estimates.get(*at)?.reward?)))
                .collect();
            let advantages = self.advantages(&rewarded)?;
            for (at, advantage) in unit.into_iter().zip(advantages) {
                let Some(sample) = estimates.get_mut(at) else {
                    continue;
                };
                (sample.advantage, sample.why) = match advantage {
                    Advantage::Value(advantage) => {
                        in_batch += 1;
                        (Some(advantage), None)
                    }
                    Advantage::SingletonGroup => {
                        (None, Some("the only sample of its group".to_owned()))
                    }
                    Advantage::Zero => (None, Some("its reward equals the baseline".to_owned())),
                };
            }
        }
        Ok(estimates)
    }

    fn advantages(&self, rewarded: &[(&SampleRecord, f32)]) -> Result<Vec<Advantage>> {
        let inputs: Vec<(&str, usize, f32)> = rewarded
            .iter()
            .map(|(sample, reward)| (sample.group.as_str(), sample.token_ids.len(), *reward))
            .collect();
        if !inputs.is_empty()
            && let Some(estimates) = self
                .components
                .estimate(&inputs)
                .context("the advantage component failed")?
        {
            return Ok(estimates);
        }
        let Some((first, _)) = rewarded.first() else {
            return Ok(Vec::new());
        };
        let estimator = EstimatorConfig::of(self.options, first);
        let rewarded: Vec<RewardedSample<'_>> = rewarded
            .iter()
            .map(|(sample, reward)| shaped_sample(self.options, sample, *reward))
            .collect();
        Ok(estimator.estimate(&rewarded, self.baselines))
    }

    /// Samples that are estimated together, as in training: one by one, per group, or all that fit a batch. A component
    /// gets whole groups, as many as fill a batch, in one call.
    fn estimation_units(
        &self,
        queue: &[SampleRecord],
        estimates: &[SampleEstimate],
    ) -> Vec<Vec<usize>> {
        let queued = queue
            .iter()
            .zip(estimates)
            .enumerate()
            .filter(|(_, (_, estimate))| estimate.reward.is_some())
            .map(|(at, (sample, _))| (at, sample));
        let is_component = self.components.estimator().is_some();
        let mut units: Vec<Vec<usize>> = Vec::new();
        // Index in `units` of each set of samples that are compared with each other.
        let mut sets: HashMap<Option<&str>, usize> = HashMap::new();
        for (at, sample) in queued {
            let estimator = EstimatorConfig::of(self.options, sample).estimator;
            let next = units.len();
            let unit = if is_component || estimator.needs_groups() {
                *sets.entry(Some(&sample.group)).or_insert(next)
            } else if estimator.comparison_scope() == ComparisonScope::Batch {
                *sets.entry(None).or_insert(next)
            } else {
                next
            };
            match units.get_mut(unit) {
                // What does not fit the batch stays in the queue.
                Some(members)
                    if sets.get(&None) == Some(&unit)
                        && members.len() >= self.options.batch_size => {}
                Some(members) => members.push(at),
                None => units.push(vec![at]),
            }
        }
        if !is_component {
            return units;
        }
        let mut all: Vec<usize> = Vec::new();
        for group in units {
            if all.len() < self.options.batch_size {
                all.extend(group);
            }
        }
        vec![all]
    }
}

#[cfg(test)]
mod tests {
    use clawhost_journal::{NeutralChoice, SampleId, SampleProvenance, SampleState, SessionId};

    use super::*;

    fn sample(id: i64, group: &str) -> SampleRecord {
        SampleRecord {
            id: SampleId(id),
            turn: TurnId(id),
            session: SessionId("s".to_owned()),
            group: group.to_owned(),
            reward: Some(1.0),
            hints: Vec::new(),
            baseline_key: "ann".to_owned(),
            provenance: SampleProvenance::default(),
            state: SampleState::Queued,
            reason: None,
            step: None,
            advantage: None,
            created_ms: 0,
            prompt_ids: vec![1],
            token_ids: vec![2],
            logprobs: vec![-0.1],
            full_logprobs: vec![-0.1],
            forced: Vec::new(),
            temperature: 1.0,
            adapter_version: 0,
        }
    }

    fn estimate_samples(
        queue: &[SampleRecord],
        rewards: Vec<Result<f32, String>>,
        options: &TrainingOptions,
        baselines: &Baselines,
    ) -> Vec<SampleEstimate> {
        let components = Components::default();
        let estimation = BatchEstimation {
            options,
            baselines,
            components: &components,
        };
        estimation.estimate_samples(queue, rewards).unwrap()
    }

    fn options(estimator: Estimator, batch: usize) -> TrainingOptions {
        TrainingOptions {
            estimator,
            batch_size: batch,
            ..TrainingOptions::default()
        }
    }

    #[test]
    fn a_batch_skips_samples_without_reward_or_advantage() {
        let queue: Vec<SampleRecord> = (1..=5).map(|id| sample(id, "g")).collect();
        let rewards = vec![
            Ok(0.5),
            Err("no verdict: cpu".to_owned()),
            Ok(-1.0),
            Ok(1.0),
            Ok(1.0),
        ];
        let baselines = Baselines::new(0.5, 0.5);
        let estimates = estimate_samples(
            &queue,
            rewards,
            &options(Estimator::Baseline, 2),
            &baselines,
        );
        let advantages: Vec<Option<f64>> = estimates.iter().map(|p| p.advantage).collect();
        assert_eq!(advantages, [None, None, Some(-1.5), Some(0.5), None]);
        let why: Vec<Option<&str>> = estimates.iter().map(|p| p.why.as_deref()).collect();
        assert_eq!(why[1], Some("no verdict: cpu"));
        assert_eq!(why[0], Some("its reward equals the baseline"));
        assert_eq!(why[4], Some("the batch is full"));
    }

    #[test]
    fn a_sample_without_a_reward_is_not_in_the_batch() {
        let hinted = SampleRecord {
            reward: None,
            ..sample(1, "g")
        };
        let queue = [hinted, sample(2, "g")];
        let rewards = queue
            .iter()
            .map(|s| reward_after(s, &BTreeMap::new()))
            .collect();
        let baselines = Baselines::new(0.5, 0.0);
        let estimates = estimate_samples(&queue, rewards, &options(Estimator::Raw, 9), &baselines);
        assert_eq!((estimates[0].reward, estimates[0].advantage), (None, None));
        assert_eq!(estimates[0].why.as_deref(), Some(HINT_ONLY));
        assert_eq!(estimates[1].advantage, Some(1.0));
    }

    #[test]
    fn groups_are_estimated_together() {
        let queue = [sample(1, "a"), sample(2, "b"), sample(3, "a")];
        let rewards = || vec![Ok(1.0), Ok(1.0), Ok(-1.0)];
        let baselines = Baselines::new(0.5, 0.0);
        let advantages_of = |estimator| -> Vec<Option<f64>> {
            let estimates = estimate_samples(&queue, rewards(), &options(estimator, 9), &baselines);
            estimates.iter().map(|p| p.advantage).collect()
        };
        assert_eq!(
            advantages_of(Estimator::GroupMean),
            [Some(1.0), None, Some(-1.0)]
        );
        assert_eq!(
            advantages_of(Estimator::Raw),
            [Some(1.0), Some(1.0), Some(-1.0)]
        );
        let level: Vec<bool> = advantages_of(Estimator::Batch)
            .iter()
            .map(Option::is_some)
            .collect();
        assert_eq!(level, [true; 3]);
    }

    #[test]
    fn a_neutral_turn_that_stands_for_its_session_stays_queued() {
        let mut chosen = sample(1, "g");
        chosen.provenance.chosen = Some(NeutralChoice {
            rule: "at least one".to_owned(),
            neutral_turns: 2,
            mean_logprob: -0.5,
        });
        let none = Err("neutral verdict".to_owned());
        assert_eq!(keep_neutral(&chosen, &none, true), Ok(0.0));
        assert_eq!(keep_neutral(&chosen, &none, false), none);
        assert_eq!(keep_neutral(&sample(1, "g"), &none, true), none);
    }
}
