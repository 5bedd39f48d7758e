//! `training.estimator` and `[training.advantage]`: advantage estimators, reward shaping and whitening.

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_fraction, require_non_negative, require_positive,
};

/// Advantage estimator. Default: `baseline`, which suits live traffic.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// The reward itself.
    Raw,
    /// reward − running mean of its baseline key.
    #[default]
    Baseline,
    /// (reward − mean) / (deviation + 1e-6) within the group of replies to one prompt (GRPO).
    Group,
    /// reward − mean of the group (Dr. GRPO).
    GroupMean,
    /// (reward − mean) / mean within the group (MaxRL).
    MaxRl,
    /// reward − mean of the batch.
    Batch,
    /// (reward − mean) / (deviation + 1e-8) over the batch, ddof 0.
    BatchStd,
    /// reward − mean of the other members of the group (leave one out).
    Rloo,
    /// Steps of episodes: outcome plus votes on the step, compared within the group.
    Step,
    /// Generalized advantage estimation without a critic: the baseline is the value of every token, so with a discount of 1
    /// a token's advantage is lambda^(distance to the end) times the advantage of `baseline`.
    Gae,
    /// REINFORCE++: each token's reward is minus its KL penalty to the base model, the last token also gets the reward, and
    /// a token's advantage is its discounted return.
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
}

/// Which samples an estimator compares with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonScope {
    /// None: each sample on its own.
    Sample,
    /// The samples of a group.
    Group,
    /// The samples of a batch.
    Batch,
}

impl Estimator {
    /// Which samples this estimator compares with each other.
    pub fn comparison_scope(self) -> ComparisonScope {
        match self {
            Estimator::Raw
            | Estimator::Baseline
            | Estimator::Gae
            | Estimator::ReinforcePlusPlus => ComparisonScope::Sample,
            Estimator::Batch | Estimator::BatchStd => ComparisonScope::Batch,
            Estimator::Group
            | Estimator::GroupMean
            | Estimator::MaxRl
            | Estimator::Rloo
            | Estimator::Step => ComparisonScope::Group,
        }
    }

    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Estimator::Raw => "raw",
            Estimator::Baseline => "baseline",
            Estimator::Group => "group",
            Estimator::GroupMean => "group-mean",
            Estimator::MaxRl => "max-rl",
            Estimator::Rloo => "rloo",
            Estimator::Batch => "batch",
            Estimator::BatchStd => "batch-std",
            Estimator::Step => "step",
            Estimator::Gae => "gae",
            Estimator::ReinforcePlusPlus => "reinforce++",
        }
    }

    /// Whether this estimator compares the samples of a group.
    pub fn needs_groups(self) -> bool {
        self.comparison_scope() == ComparisonScope::Group
    }
}

/// What a step is compared with. Default: whole trajectories.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum StepComparison {
    /// Steps with the same index, for tasks where step n of one trajectory resembles step n of another.
    StepIndex,
    /// Whole trajectories, scored by the outcome and the mean of all votes; each step gets its trajectory's advantage.
    #[default]
    Trajectory,
}

/// `[training.advantage]`. A key that neither `training.estimator` nor `training.episode_estimator` uses is rejected.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdvantageOptions {
    /// `gae` and `reinforce++`: discount factor per token, 0 to 1. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// `gae`: lambda, 0 to 1. Without a critic, less than 1 only reduces a token's credit with its distance to the end: at
    /// 0.95, 8 % is left 50 tokens before it. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gae_lambda: Option<f64>,
    /// `reinforce++`: coefficient of each token's KL penalty to the base model. Default 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_kl_coef: Option<f64>,
    /// `step`: factor on the mean of a step's votes, added to the outcome of its trajectory. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_coef: Option<f64>,
    /// `step`: what a step is compared with, `step-index` or `trajectory`. Default `trajectory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_comparison: Option<StepComparison>,
    /// Scale the advantages of all tokens of a batch to mean 0 and standard deviation 1, apart for conversations and for
    /// episodes. Default: true for `reinforce++`,
    /// else false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whiten: Option<bool>,
    /// A positive reward whose |advantage| is less than this gives no signal: the reply was accepted as expected. A sample
    /// with a hint still trains by it. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_advantage: Option<f64>,
    /// Reply length in tokens near and beyond which the reward is reduced. Default: no penalty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_length: Option<usize>,
    /// Tokens before `overlong_length` over which the penalty rises. Default: a fifth of `overlong_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_buffer: Option<usize>,
    /// Penalty of a reply with `overlong_length` tokens. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_penalty: Option<f64>,
}

/// Default of `reward_kl_coef`.
const REWARD_KL: f64 = 0.01;

impl AdvantageOptions {
    pub(super) fn validate(
        &self,
        estimator: Estimator,
        episode_estimator: Estimator,
    ) -> Result<(), OptionsError> {
        use Estimator::{Gae, ReinforcePlusPlus, Step};
        let supported: [(&'static str, Option<f64>, &[Estimator]); 4] = [
            (
                "training.advantage.gamma",
                self.gamma,
                &[Gae, ReinforcePlusPlus],
            ),
            ("training.advantage.gae_lambda", self.gae_lambda, &[Gae]),
            (
                "training.advantage.reward_kl_coef",
                self.reward_kl_coef,
                &[ReinforcePlusPlus],
            ),
            ("training.advantage.step_coef", self.step_coef, &[Step]),
        ];
        const UNUSED: &str =
            "is used by neither training.estimator nor training.episode_estimator; remove it";
        for (key, value, estimators) in supported {
            let Some(value) = value else { continue };
            let used = [estimator, episode_estimator];
            let used = used.iter().any(|one| estimators.contains(one));
            require(used, key, value, UNUSED)?;
            if key == "training.advantage.gamma" || key == "training.advantage.gae_lambda" {
                require_fraction(key, value)?;
            } else {
                require_non_negative(key, value)?;
            }
        }
        if let Some(over) = self.step_comparison {
            let name = match over {
                StepComparison::StepIndex => "step-index",
                StepComparison::Trajectory => "trajectory",
            };
            require(
                estimator == Step || episode_estimator == Step,
                "training.advantage.step_comparison",
                name,
                UNUSED,
            )?;
        }
        if let Some(min_advantage) = self.min_advantage {
            require_non_negative("training.advantage.min_advantage", min_advantage)?;
        }
        self.validate_overlong()
    }

    fn validate_overlong(&self) -> Result<(), OptionsError> {
        let Some(longest) = self.overlong_length else {
            const NEEDS_LENGTH: &str = "requires training.advantage.overlong_length";
            let buffer = self.overlong_buffer;
            require(
                buffer.is_none(),
                "training.advantage.overlong_buffer",
                buffer.unwrap_or(0),
                NEEDS_LENGTH,
            )?;
            let penalty = self.overlong_penalty;
            return require(
                penalty.is_none(),
                "training.advantage.overlong_penalty",
                penalty.unwrap_or(0.0),
                NEEDS_LENGTH,
            );
        };
        require(
            longest >= 1,
            "training.advantage.overlong_length",
            longest,
            "must be at least 1; remove it for no penalty",
        )?;
        if let Some(buffer) = self.overlong_buffer {
            require(
                (1..=longest).contains(&buffer),
                "training.advantage.overlong_buffer",
                buffer,
                "must be at least 1 and at most training.advantage.overlong_length",
            )?;
        }
        match self.overlong_penalty {
            Some(penalty) => require_positive("training.advantage.overlong_penalty", penalty),
            None => Ok(()),
        }
    }

    /// Coefficient of the KL penalty of each token.
    pub fn reward_kl_coef(&self) -> f64 {
        self.reward_kl_coef.unwrap_or(REWARD_KL)
    }

    /// Whether advantages are whitened.
    pub fn whitens(&self, estimator: Estimator) -> bool {
        self.whiten
            .unwrap_or(estimator == Estimator::ReinforcePlusPlus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation_error(estimators: (Estimator, Estimator), text: &str) -> String {
        let options: AdvantageOptions = toml::from_str(text).unwrap();
        let (estimator, episodes) = estimators;
        options
            .validate(estimator, episodes)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn keys_that_the_estimator_does_not_use_are_rejected() {
        for (estimator, text, message) in [
            (
                Estimator::Baseline,
                "gamma = 0.9",
                "training.advantage.gamma = 0.9: is used by neither training.estimator nor training.episode_estimator; remove it",
            ),
            (
                Estimator::ReinforcePlusPlus,
                "gae_lambda = 0.9",
                "training.advantage.gae_lambda = 0.9: is used by neither training.estimator nor training.episode_estimator; remove it",
            ),
            (
                Estimator::Gae,
                "step_comparison = \"trajectory\"",
                "training.advantage.step_comparison = trajectory: is used by neither training.estimator nor training.episode_estimator; remove it",
            ),
            (
                Estimator::Gae,
                "gamma = 1.5",
                "training.advantage.gamma = 1.5: must be between 0 and 1",
            ),
            (
                Estimator::Raw,
                "overlong_buffer = 4",
                "training.advantage.overlong_buffer = 4: requires training.advantage.overlong_length",
            ),
            (
                Estimator::Raw,
                "overlong_length = 4\noverlong_buffer = 5",
                "training.advantage.overlong_buffer = 5: must be at least 1 and at most training.advantage.overlong_length",
            ),
        ] {
            let estimators = (estimator, Estimator::Group);
            assert_eq!(validation_error(estimators, text), message);
        }
    }

    #[test]
    fn keys_of_the_step_estimator_are_for_episodes() {
        let options: AdvantageOptions =
            toml::from_str("step_comparison = \"step-index\"\nstep_coef = 0.5").unwrap();
        options
            .validate(Estimator::Baseline, Estimator::Step)
            .unwrap();
        options
            .validate(Estimator::Baseline, Estimator::Rloo)
            .unwrap_err();
    }

    #[test]
    fn reinforce_plus_plus_whitens_by_default() {
        let options = AdvantageOptions::default();
        assert!(options.whitens(Estimator::ReinforcePlusPlus));
        assert!(!options.whitens(Estimator::Group));
    }
}
