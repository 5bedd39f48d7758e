//! The estimators of `training.estimator` and their inputs.

use clawhost_config::{Estimator, StepComparison, TrainingOptions};
use clawhost_journal::SampleRecord;

use super::{
    Advantage, Baselines, EpisodeStep, Scale, gae, group_relative, leave_one_out, step_advantages,
};

/// An estimator's input for one sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct RewardedSample<'a> {
    /// Reward of the reply.
    pub reward: f64,
    /// Tokens of the reply.
    pub tokens: usize,
    /// Replies to the same prompt share a group.
    pub group: &'a str,
    /// Key of its baseline.
    pub baseline_key: &'a str,
    /// Its position in an episode, whose outcome is the reward then. Required by [`Estimator::Step`].
    pub episode: Option<EpisodePosition<'a>>,
}

/// The position of a sample in an episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodePosition<'a> {
    /// Id of the trajectory within the group.
    pub trajectory: &'a str,
    /// Index of the step, from 0.
    pub step: u32,
    /// Mean of the votes on this step; none if steps are not judged.
    pub votes: Option<f64>,
}

/// An estimator and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimatorConfig {
    /// The estimator.
    pub estimator: Estimator,
    /// Discount factor per token of `gae` and `reinforce++`.
    pub gamma: f64,
    /// Lambda of `gae`.
    pub lambda: f64,
    /// Factor on the votes, of `step`.
    pub step_coefficient: f64,
    /// What a step is compared with, of `step`.
    pub step_over: StepComparison,
}

/// The estimated advantage of one sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AdvantageEstimate {
    /// Of the whole reply: the mean over its tokens if they differ.
    pub(crate) advantage: Advantage,
    /// One per token, if the estimator gives different ones.
    pub(crate) tokens: Option<Vec<f32>>,
}

impl AdvantageEstimate {
    /// The estimate for a sample with this reward: zero if the reward is positive and |advantage| is below `min_advantage`,
    /// because the reply was accepted as expected.
    pub(crate) fn with_threshold(self, reward: f64, min_advantage: f64) -> Self {
        match self.advantage {
            Advantage::Value(advantage) if reward > 0.0 && advantage.abs() < min_advantage => {
                Self {
                    advantage: Advantage::Zero,
                    tokens: None,
                }
            }
            _ => self,
        }
    }
}

impl AdvantageEstimate {
    /// From token advantages. If they cancel out they are still a signal; only all zeros are none.
    pub(crate) fn from_tokens(tokens: Vec<f32>) -> Self {
        let advantage = if tokens.iter().all(|value| *value == 0.0) {
            Advantage::Zero
        } else {
            Advantage::Value(mean_token_advantage(&tokens))
        };
        Self {
            advantage,
            tokens: Some(tokens),
        }
    }
}

impl AdvantageEstimate {
    /// Sets token advantages: the same value for each token if there are none.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    pub(crate) fn broadcast(self, length: usize) -> Self {
        let value = self.advantage.value() as f32;
        Self {
            tokens: self.tokens.or_else(|| Some(vec![value; length])),
            ..self
        }
    }
}

impl From<Advantage> for AdvantageEstimate {
    fn from(advantage: Advantage) -> Self {
        Self {
            advantage,
            tokens: None,
        }
    }
}

/// Mean advantage of a reply's tokens; 0 without tokens.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
pub(crate) fn mean_token_advantage(tokens: &[f32]) -> f64 {
    tokens.iter().map(|value| f64::from(*value)).sum::<f64>() / tokens.len().max(1) as f64
}

impl From<Estimator> for EstimatorConfig {
    fn from(estimator: Estimator) -> Self {
        Self {
            estimator,
            gamma: 1.0,
            lambda: 1.0,
            step_coefficient: 1.0,
            step_over: StepComparison::default(),
        }
    }
}

impl EstimatorConfig {
    /// `training.estimator`, of the samples of conversations.
    pub fn of_conversations(options: &TrainingOptions) -> Self {
        Self::configured(options, options.estimator)
    }

    /// `training.episode_estimator`, of the samples of episodes.
    pub fn of_episodes(options: &TrainingOptions) -> Self {
        Self::configured(options, options.episode_estimator)
    }

    /// The estimator of this sample.
    pub fn of(options: &TrainingOptions, sample: &SampleRecord) -> Self {
        match sample.provenance.episode {
            Some(_) => Self::of_episodes(options),
            None => Self::of_conversations(options),
        }
    }

    fn configured(options: &TrainingOptions, estimator: Estimator) -> Self {
        let (advantage, default) = (&options.advantage, Self::from(estimator));
        Self {
            estimator,
            gamma: advantage.gamma.unwrap_or(default.gamma),
            lambda: advantage.gae_lambda.unwrap_or(default.lambda),
            step_coefficient: advantage.step_coef.unwrap_or(default.step_coefficient),
            step_over: advantage.step_comparison.unwrap_or(default.step_over),
        }
    }
}

impl EstimatorConfig {
    /// The advantage of each sample's reply, the mean if its tokens differ. `reinforce++` returns the reward itself, because
    /// its KL penalty needs the reference log-probs.
    pub fn estimate(
        &self,
        samples: &[RewardedSample<'_>],
        baselines: &Baselines,
    ) -> Vec<Advantage> {
        let rewards: Vec<f64> = samples.iter().map(|s| s.reward).collect();
        let groups: Vec<&str> = samples.iter().map(|s| s.group).collect();
        let batch = || vec![(); rewards.len()];
        match self.estimator {
            Estimator::Raw => rewards.into_iter().map(Advantage::from_value).collect(),
            // Even a reward of 0 is a signal here, because of the KL penalty.
            Estimator::ReinforcePlusPlus => rewards.into_iter().map(Advantage::Value).collect(),
            Estimator::Baseline => samples
                .iter()
                .map(|s| Advantage::from_value(s.reward - baselines.mean(s.baseline_key)))
                .collect(),
            Estimator::Group => group_relative(&rewards, &groups, Scale::SAMPLE),
            Estimator::GroupMean => group_relative(&rewards, &groups, Scale::None),
            Estimator::MaxRl => group_relative(&rewards, &groups, Scale::Mean),
            Estimator::Batch => group_relative(&rewards, &batch(), Scale::None),
            Estimator::BatchStd => group_relative(
                &rewards,
                &batch(),
                Scale::Deviation {
                    ddof: 0,
                    epsilon: 1e-8,
                },
            ),
            Estimator::Rloo => leave_one_out(&rewards, &groups),
            Estimator::Step => self.estimate_steps(samples),
            Estimator::Gae => self
                .estimate_tokens(samples, baselines)
                .into_iter()
                .map(|estimate| estimate.advantage)
                .collect(),
        }
    }

    /// As [`EstimatorConfig::estimate`], with token advantages if they differ.
    pub(crate) fn estimate_tokens(
        &self,
        samples: &[RewardedSample<'_>],
        baselines: &Baselines,
    ) -> Vec<AdvantageEstimate> {
        if self.estimator != Estimator::Gae {
            let estimates = self.estimate(samples, baselines);
            return estimates.into_iter().map(AdvantageEstimate::from).collect();
        }
        samples
            .iter()
            .map(|sample| {
                let values = vec![baselines.mean(sample.baseline_key); sample.tokens];
                let mut rewards = vec![0.0; sample.tokens];
                if let Some(last) = rewards.last_mut() {
                    *last = sample.reward;
                }
                let advantages = gae(&rewards, &values, self.gamma, self.lambda);
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "losses are computed in f32, as the parameters are"
                )]
                AdvantageEstimate::from_tokens(advantages.into_iter().map(|a| a as f32).collect())
            })
            .collect()
    }

    /// Advantages of episode steps. A sample without an episode position counts as a singleton group.
    fn estimate_steps(&self, samples: &[RewardedSample<'_>]) -> Vec<Advantage> {
        let steps: Vec<EpisodeStep<'_, f64>> = samples
            .iter()
            .filter_map(|sample| {
                let EpisodePosition {
                    trajectory,
                    step,
                    votes,
                } = sample.episode?;
                Some(EpisodeStep {
                    group: sample.group,
                    trajectory,
                    step,
                    outcome: sample.reward,
                    votes,
                })
            })
            .collect();
        let mut advantages =
            step_advantages(&steps, self.step_coefficient, self.step_over).into_iter();
        samples
            .iter()
            .map(|sample| match sample.episode {
                Some(_) => advantages.next().expect("one advantage per episode step"),
                None => Advantage::SingletonGroup,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'a>(reward: f64, group: &'a str, baseline_key: &'a str) -> RewardedSample<'a> {
        RewardedSample {
            reward,
            tokens: 3,
            group,
            baseline_key,
            episode: None,
        }
    }

    #[test]
    fn a_reward_equal_to_its_baseline_has_no_signal() {
        let baselines = Baselines::new(0.5, 0.0).after([("ann", 1.0)]);
        let out = EstimatorConfig::from(Estimator::Baseline).estimate(
            &[
                sample(1.0, "g", "ann"),
                sample(-1.0, "g", "ann"),
                sample(1.0, "g", "bob"),
            ],
            &baselines,
        );
        assert_eq!(
            out,
            vec![
                Advantage::Zero,
                Advantage::Value(-2.0),
                Advantage::Value(1.0)
            ]
        );
    }

    #[test]
    fn gae_uses_the_baseline_as_the_value() {
        let baselines = Baselines::new(0.5, 0.0).after([("ann", 0.5)]);
        let gae = EstimatorConfig {
            lambda: 0.5,
            ..Estimator::Gae.into()
        };
        let out = gae.estimate_tokens(
            &[sample(1.0, "g", "ann"), sample(0.5, "g", "ann")],
            &baselines,
        );
        assert_eq!(out[0].tokens, Some(vec![0.125, 0.25, 0.5]));
        assert_eq!(out[1].advantage, Advantage::Zero);
    }

    #[test]
    fn the_step_estimator_needs_an_episode_position() {
        let mut samples = [
            sample(1.0, "g", ""),
            sample(-1.0, "g", ""),
            sample(1.0, "g", ""),
        ];
        for (index, trajectory) in [(0, "a"), (1, "b")] {
            samples[index].episode = Some(EpisodePosition {
                trajectory,
                step: 0,
                votes: None,
            });
        }
        let out =
            EstimatorConfig::from(Estimator::Step).estimate(&samples, &Baselines::new(0.5, 0.0));
        assert!(out[0].value() > 0.7 && out[1].value() < -0.7, "{out:?}");
        assert_eq!(out[2], Advantage::SingletonGroup);
    }

    #[test]
    fn estimators_parse_from_their_configuration_names() {
        #[derive(serde::Deserialize)]
        struct Table {
            estimator: Estimator,
        }
        for (name, expected) in [
            ("reinforce++", Estimator::ReinforcePlusPlus),
            ("batch-std", Estimator::BatchStd),
            ("max-rl", Estimator::MaxRl),
        ] {
            let table: Table = toml::from_str(&format!("estimator = \"{name}\"")).unwrap();
            assert_eq!(table.estimator, expected);
        }
    }
}
