//! The estimators by name, and what each of them is asked with.

use super::{
    Baselines, EpisodeStep, Relative, Scale, StepOver, gae, leave_one_out, relative, stepwise,
};

/// How advantages are estimated. Default: `baseline`, which suits live traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// The reward itself.
    Raw,
    /// Reward less the running mean of its baseline key.
    #[default]
    Baseline,
    /// (reward − mean) / (deviation + 1e-6) within the group of replies to one prompt (GRPO).
    Group,
    /// Reward less the mean of the group (Dr. GRPO).
    GroupMean,
    /// (reward − mean) / mean within the group (MaxRL).
    MaxRl,
    /// Reward less the mean of the batch.
    Batch,
    /// (reward − mean) / (deviation + 1e-8) over the batch, ddof 0.
    BatchStd,
    /// Reward less the mean of the other members of the group.
    Rloo,
    /// Steps of episodes: outcome and votes on the single step, compared within the group.
    Step,
    /// Generalised advantage estimation. There is no critic: the running mean of the baseline key is the value of
    /// every token, so that at a discount of 1 a token's advantage is lambda to the power of its distance to the end
    /// times what `baseline` gives.
    Gae,
    /// REINFORCE++: each token pays for its divergence from the base model, the last one earns the reward, and a
    /// token's advantage is what comes from it on.
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
}

/// A sample as the estimators see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rewarded<'a> {
    /// Its reward.
    pub reward: f64,
    /// Tokens of the reply.
    pub tokens: usize,
    /// Replies to the same prompt share a group.
    pub group: &'a str,
    /// Whose running mean it is compared with.
    pub baseline_key: &'a str,
    /// Where it stands in an episode; the reward is then what came of the whole. Needed by [`Estimator::Step`].
    pub episode: Option<Episode<'a>>,
}

/// The place of a sample in an episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode<'a> {
    /// Which trajectory of the group.
    pub trajectory: &'a str,
    /// Which step of it, from 0.
    pub step: u32,
    /// Mean of the votes on this step.
    pub votes: f64,
}

/// An estimator and its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimation {
    /// Which one.
    pub estimator: Estimator,
    /// What a reward counts one token earlier; of `gae` and `reinforce++`. Default 1.
    pub discount: f64,
    /// How far `gae` looks ahead. Default 1: without a critic less would only take credit from early tokens.
    pub lambda: f64,
    /// Factor on the votes; of `step`. Default 1.
    pub step_coefficient: f64,
    /// What a step is compared with; of `step`. Default: the same step of other trajectories.
    pub step_over: StepOver,
}

/// The advantage of one sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Estimate {
    /// Of the whole reply: the mean over its tokens where they differ.
    pub(crate) relative: Relative,
    /// One for each token, where they are told apart.
    pub(crate) tokens: Option<Vec<f32>>,
}

impl Estimate {
    /// Advantages of single tokens. Those that cancel out are a signal all the same.
    pub(crate) fn of_tokens(tokens: Vec<f32>) -> Self {
        let relative = if tokens.iter().all(|value| *value == 0.0) {
            Relative::Level
        } else {
            Relative::Value(mean_of(&tokens))
        };
        Self {
            relative,
            tokens: Some(tokens),
        }
    }
}

impl Estimate {
    /// The same with a value for each token.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    pub(crate) fn spread(self, length: usize) -> Self {
        let value = self.relative.value() as f32;
        Self {
            tokens: self.tokens.or_else(|| Some(vec![value; length])),
            ..self
        }
    }
}

impl From<Relative> for Estimate {
    fn from(relative: Relative) -> Self {
        Self {
            relative,
            tokens: None,
        }
    }
}

/// Mean of the advantages of a reply's tokens; of none, 0.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
pub(crate) fn mean_of(tokens: &[f32]) -> f64 {
    tokens.iter().map(|value| f64::from(*value)).sum::<f64>() / tokens.len().max(1) as f64
}

impl From<Estimator> for Estimation {
    fn from(estimator: Estimator) -> Self {
        Self {
            estimator,
            discount: 1.0,
            lambda: 1.0,
            step_coefficient: 1.0,
            step_over: StepOver::default(),
        }
    }
}

/// Which samples an estimator must see together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Each by itself.
    Alone,
    /// All of one group.
    Group,
    /// All of one batch.
    Batch,
}

impl Estimator {
    /// Which samples must be looked at together.
    pub fn company(self) -> Company {
        match self {
            Estimator::Raw
            | Estimator::Baseline
            | Estimator::Gae
            | Estimator::ReinforcePlusPlus => Company::Alone,
            Estimator::Batch | Estimator::BatchStd => Company::Batch,
            Estimator::Group
            | Estimator::GroupMean
            | Estimator::MaxRl
            | Estimator::Rloo
            | Estimator::Step => Company::Group,
        }
    }

    /// Whether samples of one group must be looked at together.
    pub fn needs_groups(self) -> bool {
        self.company() == Company::Group
    }
}

impl Estimation {
    /// The advantage of every sample: of its whole reply, the mean where its tokens differ. `reinforce++` gives the
    /// bare reward, since the rest waits for the reference's log-probs.
    pub fn estimate(&self, samples: &[Rewarded<'_>], baselines: &Baselines) -> Vec<Relative> {
        let rewards: Vec<f64> = samples.iter().map(|s| s.reward).collect();
        let groups: Vec<&str> = samples.iter().map(|s| s.group).collect();
        let batch = || vec![(); rewards.len()];
        match self.estimator {
            Estimator::Raw => rewards.into_iter().map(Relative::of).collect(),
            // A reward of 0 pays for its divergence, too.
            Estimator::ReinforcePlusPlus => rewards.into_iter().map(Relative::Value).collect(),
            Estimator::Baseline => samples
                .iter()
                .map(|s| Relative::of(s.reward - baselines.of(s.baseline_key)))
                .collect(),
            Estimator::Group => relative(&rewards, &groups, Scale::SAMPLE),
            Estimator::GroupMean => relative(&rewards, &groups, Scale::None),
            Estimator::MaxRl => relative(&rewards, &groups, Scale::Mean),
            Estimator::Batch => relative(&rewards, &batch(), Scale::None),
            Estimator::BatchStd => relative(
                &rewards,
                &batch(),
                Scale::Deviation {
                    ddof: 0,
                    epsilon: 1e-8,
                },
            ),
            Estimator::Rloo => leave_one_out(&rewards, &groups),
            Estimator::Step => self.stepwise(samples),
            Estimator::Gae => self
                .estimate_tokens(samples, baselines)
                .into_iter()
                .map(|estimate| estimate.relative)
                .collect(),
        }
    }

    /// As [`Estimation::estimate`], with the advantages of single tokens where they differ.
    pub(crate) fn estimate_tokens(
        &self,
        samples: &[Rewarded<'_>],
        baselines: &Baselines,
    ) -> Vec<Estimate> {
        if self.estimator != Estimator::Gae {
            let estimates = self.estimate(samples, baselines);
            return estimates.into_iter().map(Estimate::from).collect();
        }
        samples
            .iter()
            .map(|sample| {
                let values = vec![baselines.of(sample.baseline_key); sample.tokens];
                let mut rewards = vec![0.0; sample.tokens];
                if let Some(last) = rewards.last_mut() {
                    *last = sample.reward;
                }
                let advantages = gae(&rewards, &values, self.discount, self.lambda);
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "losses are computed in f32, as the parameters are"
                )]
                Estimate::of_tokens(advantages.into_iter().map(|a| a as f32).collect())
            })
            .collect()
    }

    /// Samples without a place in an episode are alone.
    fn stepwise(&self, samples: &[Rewarded<'_>]) -> Vec<Relative> {
        let steps: Vec<EpisodeStep<'_, f64>> = samples
            .iter()
            .filter_map(|sample| {
                let Episode {
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
        let mut advantages = stepwise(&steps, self.step_coefficient, self.step_over).into_iter();
        samples
            .iter()
            .map(|sample| match sample.episode {
                Some(_) => advantages.next().unwrap_or(Relative::Alone),
                None => Relative::Alone,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'a>(reward: f64, group: &'a str, baseline_key: &'a str) -> Rewarded<'a> {
        Rewarded {
            reward,
            tokens: 3,
            group,
            baseline_key,
            episode: None,
        }
    }

    #[test]
    fn a_reward_at_its_baseline_is_no_signal() {
        let baselines = Baselines::new(0.5, 0.0).after([("ann", 1.0)]);
        let out = Estimation::from(Estimator::Baseline).estimate(
            &[
                sample(1.0, "g", "ann"),
                sample(-1.0, "g", "ann"),
                sample(1.0, "g", "bob"),
            ],
            &baselines,
        );
        assert_eq!(
            out,
            vec![Relative::Level, Relative::Value(-2.0), Relative::Value(1.0)]
        );
    }

    #[test]
    fn without_a_critic_the_running_mean_is_the_value() {
        let baselines = Baselines::new(0.5, 0.0).after([("ann", 0.5)]);
        let gae = Estimation {
            lambda: 0.5,
            ..Estimator::Gae.into()
        };
        let out = gae.estimate_tokens(
            &[sample(1.0, "g", "ann"), sample(0.5, "g", "ann")],
            &baselines,
        );
        assert_eq!(out[0].tokens, Some(vec![0.125, 0.25, 0.5]));
        assert_eq!(out[1].relative, Relative::Level);
    }

    #[test]
    fn a_step_needs_an_episode() {
        let mut samples = [
            sample(1.0, "g", ""),
            sample(-1.0, "g", ""),
            sample(1.0, "g", ""),
        ];
        for (place, trajectory) in [(0, "a"), (1, "b")] {
            samples[place].episode = Some(Episode {
                trajectory,
                step: 0,
                votes: 0.0,
            });
        }
        let out = Estimation::from(Estimator::Step).estimate(&samples, &Baselines::new(0.5, 0.0));
        assert!(out[0].value() > 0.7 && out[1].value() < -0.7, "{out:?}");
        assert_eq!(out[2], Relative::Alone);
    }

    #[test]
    fn names_are_those_of_the_configuration() {
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
