//! Leave-one-out advantages (RLOO, arXiv 2402.14740): the reward minus the mean reward of the other samples of the group.
//!
//! Unlike the group mean, this baseline does not depend on the sequence's own reward, so it does not bias the gradient.
//! A group of one has no baseline: its advantage is 0, which is no training signal. A sequence's reward is its own reward
//! plus the sum of its token rewards.
//!
//! There are no settings. Rewards that are not finite are rejected.

use std::collections::BTreeMap;

use clawhost_sdk::advantage::{Estimate, Sequence};
use clawhost_sdk::{Advantage, Metric, PluginError};

/// The estimator.
pub struct Rloo;

impl Advantage for Rloo {
    fn compute(sequences: &[Sequence]) -> Result<Estimate, PluginError> {
        let rewards: Vec<f64> = sequences.iter().map(reward).collect();
        if let Some(at) = rewards.iter().position(|reward| !reward.is_finite()) {
            return Err(PluginError::InvalidInput(format!(
                "the reward of sequence {at} is not finite"
            )));
        }
        let mut groups: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
        for (sequence, reward) in sequences.iter().zip(&rewards) {
            let (sum, count) = groups.entry(sequence.group).or_default();
            *sum += reward;
            *count += 1;
        }
        let values = sequences
            .iter()
            .zip(&rewards)
            .map(|(sequence, reward)| match groups.get(&sequence.group) {
                Some((sum, count)) if *count > 1 => {
                    (reward - (sum - reward) / f64::from(count - 1)) as f32
                }
                _ => 0.0,
            })
            .collect();
        let alone = groups.values().filter(|(_, count)| *count == 1).count();
        let mut estimate = Estimate::per_sequence(values);
        let metric = Metric::new("groups_of_one", alone as f64);
        estimate.metrics.push(metric);
        Ok(estimate)
    }
}

clawhost_sdk::export_advantage!(Rloo);

fn reward(sequence: &Sequence) -> f64 {
    let of_tokens: f64 = sequence
        .token_rewards
        .iter()
        .map(|(_, reward)| f64::from(*reward))
        .sum();
    f64::from(sequence.reward) + of_tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(group: u32, reward: f32) -> Sequence {
        Sequence {
            group,
            length: 4,
            reward,
            token_rewards: Vec::new(),
        }
    }

    fn values(sequences: &[Sequence]) -> Vec<f32> {
        let estimate = Rloo::compute(sequences).unwrap();
        assert!(!estimate.per_token);
        estimate.values
    }

    #[test]
    fn baseline_is_the_mean_of_the_other_samples() {
        let group = [1.0, 0.0, 0.0, 0.5].map(|reward| sequence(3, reward));
        let expected = [5.0 / 6.0, -0.5, -0.5, 1.0 / 6.0];
        for (got, expected) in values(&group).iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn values_match_the_goldens() {
        let rewards = [
            1.0, 0.0, 0.0, 1.0, 1.0, -1.0, 1.0, 1.0, 0.25, 0.75, 0.5, 0.0,
        ];
        let sequences: Vec<Sequence> = rewards
            .iter()
            .enumerate()
            .map(|(at, reward)| sequence(at as u32 / 4, *reward))
            .collect();
        let (third, sixth) = (2.0 / 3.0, 1.0 / 6.0);
        let expected = [
            third, -third, -third, third, third, -2.0, third, third, -sixth, 0.5, sixth, -0.5,
        ];
        for (got, expected) in values(&sequences).iter().zip(expected) {
            assert!((f64::from(*got) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn groups_are_independent_of_their_order() {
        let mixed = [(1, 1.0), (2, -1.0), (1, 0.0), (2, 1.0), (9, 0.7)];
        let mixed = mixed.map(|(group, reward)| sequence(group, reward));
        assert_eq!(values(&mixed), [1.0, -2.0, -1.0, 2.0, 0.0]);
    }

    #[test]
    fn single_and_equal_samples_have_zero_advantage() {
        assert_eq!(values(&[sequence(1, 1.0)]), [0.0]);
        assert_eq!(values(&[sequence(1, 0.25), sequence(1, 0.25)]), [0.0, 0.0]);
        assert!(values(&[]).is_empty());
    }

    #[test]
    fn token_rewards_are_added_and_must_be_finite() {
        let mut better = sequence(1, 0.0);
        better.token_rewards = vec![(0, 0.5), (3, 0.5)];
        assert_eq!(values(&[better.clone(), sequence(1, 0.0)]), [1.0, -1.0]);
        better.reward = f32::NAN;
        assert!(Rloo::compute(&[better, sequence(1, 0.0)]).is_err());
    }
}
