//! From rewards to advantages.
//!
//! A sample without a signal (alone in its group, level with its group, exactly at its baseline)
//! is never given a made-up advantage: it is left out, with the reason.

mod baseline;
mod group;

pub use baseline::{BaselineError, Baselines};
pub use group::{Relative, Scale, leave_one_out, relative};

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
    /// Reward less the mean of the other members of the group.
    Rloo,
}

/// A sample as the estimators see it.
#[derive(Debug, Clone, Copy)]
pub struct Rewarded<'a> {
    /// Its reward.
    pub reward: f64,
    /// Replies to the same prompt share a group.
    pub group: &'a str,
    /// Whose running mean it is compared with.
    pub baseline_key: &'a str,
}

impl Estimator {
    /// Whether samples of one group must be looked at together.
    pub fn needs_groups(self) -> bool {
        matches!(
            self,
            Estimator::Group | Estimator::GroupMean | Estimator::MaxRl | Estimator::Rloo
        )
    }

    /// The advantage of every sample.
    pub fn estimate(self, samples: &[Rewarded<'_>], baselines: &Baselines) -> Vec<Relative> {
        let rewards: Vec<f64> = samples.iter().map(|s| s.reward).collect();
        let groups: Vec<&str> = samples.iter().map(|s| s.group).collect();
        let signal = |value: f64| match value {
            0.0 => Relative::Level,
            value => Relative::Value(value),
        };
        match self {
            Estimator::Raw => rewards.into_iter().map(signal).collect(),
            Estimator::Baseline => samples
                .iter()
                .map(|s| signal(s.reward - baselines.of(s.baseline_key)))
                .collect(),
            Estimator::Group => relative(
                &rewards,
                &groups,
                Scale::Deviation {
                    ddof: 1,
                    epsilon: 1e-6,
                },
            ),
            Estimator::GroupMean => relative(&rewards, &groups, Scale::None),
            Estimator::MaxRl => relative(&rewards, &groups, Scale::Mean),
            Estimator::Batch => relative(&rewards, &vec![(); rewards.len()], Scale::None),
            Estimator::Rloo => leave_one_out(&rewards, &groups),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_at_its_baseline_is_no_signal() {
        let baselines = Baselines::new(0.5, 0.0).after([("ann", 1.0)]);
        let sample = |reward, baseline_key| Rewarded {
            reward,
            group: "g",
            baseline_key,
        };
        let out = Estimator::Baseline.estimate(
            &[sample(1.0, "ann"), sample(-1.0, "ann"), sample(1.0, "bob")],
            &baselines,
        );
        assert_eq!(
            out,
            vec![Relative::Level, Relative::Value(-2.0), Relative::Value(1.0)]
        );
    }
}
