//! `[training.advantage]`: parameters of the estimators, reward shaping and whitening.

use serde::{Deserialize, Serialize};

use super::rules::{
    OptionsError, require, require_fraction, require_non_negative, require_positive,
};
use crate::advantage::{Estimator, EstimatorConfig, OverlongPenalty, StepComparison};

/// `[training.advantage]`. A key that the configured `training.estimator` does not use is rejected.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdvantageOptions {
    /// `gae` and `reinforce++`: discount factor per token, 0 to 1. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discount: Option<f64>,
    /// `gae`: lambda, 0 to 1. Without a critic, less than 1 only reduces a token's credit with its distance to the end: at
    /// 0.95, 8 % is left 50 tokens before it. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gae_lambda: Option<f64>,
    /// `reinforce++`: coefficient of each token's KL penalty to the base model. Default 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_kl: Option<f64>,
    /// `step`: factor on the mean of a step's votes, added to the outcome of its trajectory. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_coefficient: Option<f64>,
    /// `step`: what a step is compared with, `step-index` or `trajectory`. Default `step-index`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_over: Option<StepComparison>,
    /// Scale the advantages of all tokens of a batch to mean 0 and standard deviation 1. Default: true for `reinforce++`,
    /// else false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whiten: Option<bool>,
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

/// Default of `reward_kl`.
const REWARD_KL: f64 = 0.01;

impl AdvantageOptions {
    pub(super) fn validate(&self, estimator: Estimator) -> Result<(), OptionsError> {
        use Estimator::{Gae, ReinforcePlusPlus, Step};
        let supported: [(&'static str, Option<f64>, &[Estimator]); 4] = [
            (
                "training.advantage.discount",
                self.discount,
                &[Gae, ReinforcePlusPlus],
            ),
            ("training.advantage.gae_lambda", self.gae_lambda, &[Gae]),
            (
                "training.advantage.reward_kl",
                self.reward_kl,
                &[ReinforcePlusPlus],
            ),
            (
                "training.advantage.step_coefficient",
                self.step_coefficient,
                &[Step],
            ),
        ];
        const UNUSED: &str = "is not used by this training.estimator; remove it";
        for (key, value, estimators) in supported {
            let Some(value) = value else { continue };
            require(estimators.contains(&estimator), key, value, UNUSED)?;
            if key == "training.advantage.discount" || key == "training.advantage.gae_lambda" {
                require_fraction(key, value)?;
            } else {
                require_non_negative(key, value)?;
            }
        }
        if let Some(over) = self.step_over {
            let name = match over {
                StepComparison::StepIndex => "step-index",
                StepComparison::Trajectory => "trajectory",
            };
            require(
                estimator == Step,
                "training.advantage.step_over",
                name,
                UNUSED,
            )?;
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

    /// The estimator with its parameters.
    pub(crate) fn estimator_config(&self, estimator: Estimator) -> EstimatorConfig {
        let default = EstimatorConfig::from(estimator);
        EstimatorConfig {
            estimator,
            discount: self.discount.unwrap_or(default.discount),
            lambda: self.gae_lambda.unwrap_or(default.lambda),
            step_coefficient: self.step_coefficient.unwrap_or(default.step_coefficient),
            step_over: self.step_over.unwrap_or(default.step_over),
        }
    }

    /// Coefficient of the KL penalty of each token.
    pub(crate) fn reward_kl(&self) -> f64 {
        self.reward_kl.unwrap_or(REWARD_KL)
    }

    /// Whether advantages are whitened.
    pub(crate) fn whitens(&self, estimator: Estimator) -> bool {
        self.whiten
            .unwrap_or(estimator == Estimator::ReinforcePlusPlus)
    }

    /// The overlong penalty, if configured.
    pub(crate) fn overlong(&self) -> Option<OverlongPenalty> {
        let longest = self.overlong_length?;
        Some(OverlongPenalty {
            longest,
            buffer: self.overlong_buffer.unwrap_or((longest / 5).max(1)),
            penalty: self.overlong_penalty.unwrap_or(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation_error(estimator: Estimator, text: &str) -> String {
        let options: AdvantageOptions = toml::from_str(text).unwrap();
        options.validate(estimator).unwrap_err().to_string()
    }

    #[test]
    fn keys_that_the_estimator_does_not_use_are_rejected() {
        for (estimator, text, message) in [
            (
                Estimator::Baseline,
                "discount = 0.9",
                "training.advantage.discount = 0.9: is not used by this training.estimator; remove it",
            ),
            (
                Estimator::ReinforcePlusPlus,
                "gae_lambda = 0.9",
                "training.advantage.gae_lambda = 0.9: is not used by this training.estimator; remove it",
            ),
            (
                Estimator::Gae,
                "step_over = \"trajectory\"",
                "training.advantage.step_over = trajectory: is not used by this training.estimator; remove it",
            ),
            (
                Estimator::Gae,
                "discount = 1.5",
                "training.advantage.discount = 1.5: must be between 0 and 1",
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
            assert_eq!(validation_error(estimator, text), message);
        }
    }

    #[test]
    fn whitening_and_overlong_defaults() {
        let options = AdvantageOptions::default();
        assert!(options.whitens(Estimator::ReinforcePlusPlus));
        assert!(!options.whitens(Estimator::Group));
        assert_eq!(options.overlong(), None);
        let options: AdvantageOptions = toml::from_str("overlong_length = 100").unwrap();
        let overlong = options.overlong().unwrap();
        assert_eq!((overlong.buffer, overlong.penalty), (20, 1.0));
    }
}
