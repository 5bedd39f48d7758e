//! `[training.advantage]`: the numbers of the estimators, and what is done to rewards and advantages around them.

use serde::{Deserialize, Serialize};

use super::rules::{OptionsError, not_negative, positive, rule, share};
use crate::advantage::{Estimation, Estimator, Overlong, StepOver};

/// `[training.advantage]`. A key that the chosen `training.estimator` does not know is refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdvantageOptions {
    /// `gae` and `reinforce++`: what a reward counts one token earlier, 0 to 1. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discount: Option<f64>,
    /// `gae`: how far it looks ahead, 0 (not at all) to 1. There is no critic, so with less than 1 a token's
    /// credit only fades with its distance to the end: at 0.95, 50 tokens before it 8 % are left. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gae_lambda: Option<f64>,
    /// `reinforce++`: what each token pays for its divergence from the base model. Default 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_kl: Option<f64>,
    /// `step`: factor on the mean of the votes on a step beside the outcome of its trajectory. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_coefficient: Option<f64>,
    /// `step`: what a step is compared with, `step-index` or `trajectory`. Default `step-index`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_over: Option<StepOver>,
    /// Scale the advantages of all tokens of a batch to mean 0 and deviation 1. Default: true for `reinforce++`, else
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whiten: Option<bool>,
    /// Tokens of the longest reply that is wanted; those near it and beyond pay. Default: none pays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_length: Option<usize>,
    /// Tokens before `overlong_length` over which the penalty rises. Default a fifth of `overlong_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_buffer: Option<usize>,
    /// What a reply of `overlong_length` tokens pays. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_penalty: Option<f64>,
}

/// What each token pays for its divergence when nothing is said.
const REWARD_KL: f64 = 0.01;

impl AdvantageOptions {
    pub(super) fn validate(&self, estimator: Estimator) -> Result<(), OptionsError> {
        use Estimator::{Gae, ReinforcePlusPlus, Step};
        let known: [(&'static str, Option<f64>, &[Estimator]); 4] = [
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
        const UNKNOWN: &str = "does nothing with this training.estimator; leave it out";
        for (key, value, estimators) in known {
            let Some(value) = value else { continue };
            rule(estimators.contains(&estimator), key, value, UNKNOWN)?;
            if key == "training.advantage.discount" || key == "training.advantage.gae_lambda" {
                share(key, value)?;
            } else {
                not_negative(key, value)?;
            }
        }
        if let Some(over) = self.step_over {
            let name = match over {
                StepOver::StepIndex => "step-index",
                StepOver::Trajectory => "trajectory",
            };
            rule(
                estimator == Step,
                "training.advantage.step_over",
                name,
                UNKNOWN,
            )?;
        }
        self.validate_overlong()
    }

    fn validate_overlong(&self) -> Result<(), OptionsError> {
        let Some(longest) = self.overlong_length else {
            const ALONE: &str = "does nothing without training.advantage.overlong_length";
            let buffer = self.overlong_buffer;
            rule(
                buffer.is_none(),
                "training.advantage.overlong_buffer",
                buffer.unwrap_or(0),
                ALONE,
            )?;
            let penalty = self.overlong_penalty;
            return rule(
                penalty.is_none(),
                "training.advantage.overlong_penalty",
                penalty.unwrap_or(0.0),
                ALONE,
            );
        };
        rule(
            longest >= 1,
            "training.advantage.overlong_length",
            longest,
            "must be at least 1; leave it out for none",
        )?;
        if let Some(buffer) = self.overlong_buffer {
            rule(
                (1..=longest).contains(&buffer),
                "training.advantage.overlong_buffer",
                buffer,
                "must be at least 1 and at most training.advantage.overlong_length",
            )?;
        }
        match self.overlong_penalty {
            Some(penalty) => positive("training.advantage.overlong_penalty", penalty),
            None => Ok(()),
        }
    }

    /// The estimator with its numbers.
    pub(crate) fn estimation(&self, estimator: Estimator) -> Estimation {
        let default = Estimation::from(estimator);
        Estimation {
            estimator,
            discount: self.discount.unwrap_or(default.discount),
            lambda: self.gae_lambda.unwrap_or(default.lambda),
            step_coefficient: self.step_coefficient.unwrap_or(default.step_coefficient),
            step_over: self.step_over.unwrap_or(default.step_over),
        }
    }

    /// What each token pays for its divergence from the base model.
    pub(crate) fn reward_kl(&self) -> f64 {
        self.reward_kl.unwrap_or(REWARD_KL)
    }

    /// Whether advantages are whitened.
    pub(crate) fn whitens(&self, estimator: Estimator) -> bool {
        self.whiten
            .unwrap_or(estimator == Estimator::ReinforcePlusPlus)
    }

    /// What overlong replies pay, if they do.
    pub(crate) fn overlong(&self) -> Option<Overlong> {
        let longest = self.overlong_length?;
        Some(Overlong {
            longest,
            buffer: self.overlong_buffer.unwrap_or((longest / 5).max(1)),
            penalty: self.overlong_penalty.unwrap_or(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(estimator: Estimator, text: &str) -> String {
        let options: AdvantageOptions = toml::from_str(text).unwrap();
        options.validate(estimator).unwrap_err().to_string()
    }

    #[test]
    fn what_an_estimator_does_not_know_is_refused() {
        for (estimator, text, message) in [
            (
                Estimator::Baseline,
                "discount = 0.9",
                "training.advantage.discount = 0.9: does nothing with this training.estimator; leave it out",
            ),
            (
                Estimator::ReinforcePlusPlus,
                "gae_lambda = 0.9",
                "training.advantage.gae_lambda = 0.9: does nothing with this training.estimator; leave it out",
            ),
            (
                Estimator::Gae,
                "step_over = \"trajectory\"",
                "training.advantage.step_over = trajectory: does nothing with this training.estimator; leave it out",
            ),
            (
                Estimator::Gae,
                "discount = 1.5",
                "training.advantage.discount = 1.5: must be between 0 and 1",
            ),
            (
                Estimator::Raw,
                "overlong_buffer = 4",
                "training.advantage.overlong_buffer = 4: does nothing without training.advantage.overlong_length",
            ),
            (
                Estimator::Raw,
                "overlong_length = 4\noverlong_buffer = 5",
                "training.advantage.overlong_buffer = 5: must be at least 1 and at most training.advantage.overlong_length",
            ),
        ] {
            assert_eq!(refusal(estimator, text), message);
        }
    }

    #[test]
    fn defaults_are_those_of_the_estimator() {
        let options = AdvantageOptions::default();
        assert!(options.whitens(Estimator::ReinforcePlusPlus));
        assert!(!options.whitens(Estimator::Group));
        assert_eq!(options.overlong(), None);
        let options: AdvantageOptions = toml::from_str("overlong_length = 100").unwrap();
        let overlong = options.overlong().unwrap();
        assert_eq!((overlong.buffer, overlong.penalty), (20, 1.0));
    }
}
