//! `[training.loss]`: the objective.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require, require_non_negative, require_positive};

/// Which log-probs are the old policy's in the importance ratio.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OldLogprobsSource {
    /// Those that the engine recorded, from the full softmax at the sampling temperature. Top-p and top-k are ignored on both
    /// sides: log-probs renormalized over the remaining tokens would shift every ratio by the removed mass, which is
    /// unrelated to the policy.
    #[default]
    Recorded,
    /// Those that the trainer recomputes before the update; importance sampling weights then correct for the mismatch with
    /// the recorded ones.
    Recomputed,
}

/// Importance sampling correction. Only used with `old_logprobs = "recomputed"`: a ratio to the recorded log-probs already
/// contains it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ImportanceSamplingMode {
    /// No correction.
    None,
    /// Weights truncated at `importance_sampling_max`.
    #[default]
    Truncate,
    /// Tokens whose weight is outside of `importance_sampling_min ..= importance_sampling_max` are masked.
    Mask,
}

/// Policy-gradient loss.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum LossMethod {
    /// The ratio of each token is clipped.
    #[default]
    Ppo,
    /// The sequence-level ratio is clipped.
    Gspo,
    /// The clipped ratio is a constant weight, so that every token keeps its gradient.
    Cispo,
    /// A smooth gate replaces the clip.
    Sapo,
    /// Tokens whose probability moved too far are masked.
    Dppo,
    /// No ratio; for a single update per batch.
    Reinforce,
}

/// Aggregation of token losses. Default: `seq-mean-token-mean`, so that long and short replies have equal weight: users rate
/// replies, not tokens.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Sum over all tokens / number of tokens.
    TokenMean,
    /// Mean over sequences of the mean over their tokens.
    #[default]
    SeqMeanTokenMean,
    /// Mean over sequences of the sum over their tokens.
    SeqMeanTokenSum,
    /// Sum over all tokens / a fixed number of tokens.
    Constant(NonZeroUsize),
    /// Sum over all tokens / (number of sequences, empty ones too, × a fixed length).
    SeqConstant(NonZeroUsize),
}

/// KL estimator. Default: k3.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum KlEstimator {
    /// d: unbiased value, but a constant derivative.
    K1,
    /// d^2 / 2: its derivative d equals that of the KL divergence on fresh samples.
    K2,
    /// exp(-d) - 1 + d: unbiased, never negative, derivative 1 - exp(-d).
    #[default]
    K3,
    /// k3 clamped to [-10, 10]; outside, the derivative is zero.
    K3Clamped,
}

/// Level of an importance weight: token or sequence.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ImportanceLevel {
    /// One weight per token.
    #[default]
    Token,
    /// One weight per sequence: exp of the sum over its tokens.
    Sequence,
    /// One weight per sequence: exp of the mean over its tokens.
    Geometric,
}

/// `[training.loss]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// Policy-gradient loss. Default `ppo`.
    pub method: LossMethod,
    /// Lower clip distance of the ratio from 1, for `cispo` of its weight; for `dppo` the largest decrease of a probability.
    /// Default by method: ppo 0.2, gspo 3e-4, cispo 1 (no lower bound), dppo 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_ratio_low: Option<f64>,
    /// Upper clip distance of the ratio from 1; for `dppo` the largest increase of a probability. Default by method: ppo
    /// 0.28, gspo 4e-4, cispo 0.28, dppo 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_ratio_high: Option<f64>,
    /// `ppo` only: dual clip, bounds the loss of tokens with a negative advantage to this factor times |advantage|. Default
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_ratio_c: Option<f64>,
    /// `sapo` only: steepness of the gate for positive advantages. Default 1.
    pub sapo_temperature_pos: f64,
    /// `sapo` only: steepness of the gate for other advantages. Default 1.05.
    pub sapo_temperature_neg: f64,
    /// `dppo` only: factor on the squared change of a log-prob. Default 1e-3.
    pub dppo_tau: f64,
    /// `dppo` only: mask only tokens whose probability decreased too far, whatever their advantage; for distillation.
    /// Default false.
    pub dppo_one_sided: bool,
    /// Old log-probs of the ratio. Default `recorded`.
    pub old_logprobs: OldLogprobsSource,
    /// Aggregation of token losses. Default `seq-mean-token-mean`.
    pub aggregation: Aggregation,
    /// Estimator of the KL divergence from the base model. Default `k3`.
    pub kl_estimator: KlEstimator,
    /// Coefficient of the KL penalty; 0 = off. Default 0.
    pub kl_coef: f64,
    /// Weight the KL estimate by the ratio, which makes its gradient unbiased off-policy. Default false.
    pub kl_weighted: bool,
    /// Coefficient of the entropy bonus. Default 0.
    pub entropy_coef: f64,
    /// Importance sampling correction. Default `truncate`.
    pub importance_sampling: ImportanceSamplingMode,
    /// Level of the importance weights. Default `token`.
    pub importance_sampling_level: ImportanceLevel,
    /// Smallest weight that is not masked with `mask`. Default 0.5.
    pub importance_sampling_min: f64,
    /// Largest weight: `truncate` cuts larger ones to it, `mask` masks their tokens. Default 2.
    pub importance_sampling_max: f64,
}

impl Default for LossOptions {
    fn default() -> Self {
        Self {
            method: LossMethod::default(),
            clip_ratio_low: None,
            clip_ratio_high: None,
            clip_ratio_c: None,
            sapo_temperature_pos: 1.0,
            sapo_temperature_neg: 1.05,
            dppo_tau: 1e-3,
            dppo_one_sided: false,
            old_logprobs: OldLogprobsSource::default(),
            aggregation: Aggregation::default(),
            kl_estimator: KlEstimator::default(),
            kl_coef: 0.0,
            kl_weighted: false,
            entropy_coef: 0.0,
            importance_sampling: ImportanceSamplingMode::default(),
            importance_sampling_level: ImportanceLevel::default(),
            importance_sampling_min: 0.5,
            importance_sampling_max: 2.0,
        }
    }
}

impl LossOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        self.validate_method()?;
        require_non_negative("training.loss.kl_coef", self.kl_coef)?;
        require(
            self.kl_coef == 0.0 || self.kl_estimator != KlEstimator::K1 || self.kl_weighted,
            "training.loss.kl_estimator",
            "k1",
            "has a constant derivative and has no effect as a penalty; use k2 or k3, or set training.loss.kl_weighted",
        )?;
        require_non_negative("training.loss.entropy_coef", self.entropy_coef)?;
        require_non_negative(
            "training.loss.importance_sampling_min",
            self.importance_sampling_min,
        )?;
        require(
            self.importance_sampling_max > self.importance_sampling_min
                && self.importance_sampling_max.is_finite(),
            "training.loss.importance_sampling_max",
            self.importance_sampling_max,
            "must be more than training.loss.importance_sampling_min",
        )
    }

    /// Checks the clip range of the method and rejects keys that the method does not use.
    fn validate_method(&self) -> Result<(), OptionsError> {
        let method = self.method;
        let clips = !matches!(method, LossMethod::Sapo | LossMethod::Reinforce);
        for (key, value) in [
            ("training.loss.clip_ratio_low", self.clip_ratio_low),
            ("training.loss.clip_ratio_high", self.clip_ratio_high),
        ] {
            let Some(value) = value else { continue };
            require(
                clips,
                key,
                value,
                "is not used by this training.loss.method; remove it",
            )?;
            require_positive(key, value)?;
        }
        if let Some(low) = self.clip_ratio_low {
            require(
                low < 1.0 || (low <= 1.0 && method == LossMethod::Cispo),
                "training.loss.clip_ratio_low",
                low,
                "must be more than 0 and less than 1",
            )?;
        }
        if let Some(factor) = self.clip_ratio_c {
            require(
                method == LossMethod::Ppo,
                "training.loss.clip_ratio_c",
                factor,
                "is not used by this training.loss.method; remove it",
            )?;
            require(
                factor > 1.0 && factor.is_finite(),
                "training.loss.clip_ratio_c",
                factor,
                "must be more than 1",
            )?;
        }
        require_positive(
            "training.loss.sapo_temperature_pos",
            self.sapo_temperature_pos,
        )?;
        require_positive(
            "training.loss.sapo_temperature_neg",
            self.sapo_temperature_neg,
        )?;
        require_non_negative("training.loss.dppo_tau", self.dppo_tau)?;
        require(
            !self.dppo_one_sided || method == LossMethod::Dppo,
            "training.loss.dppo_one_sided",
            true,
            "is not used by this training.loss.method; remove it",
        )?;
        require(
            !self.dppo_one_sided || self.clip_ratio_high.is_none(),
            "training.loss.clip_ratio_high",
            self.clip_ratio_high.unwrap_or_default(),
            "is not used with training.loss.dppo_one_sided; remove it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> LossOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn keys_that_the_method_does_not_use_are_rejected() {
        for (text, message) in [
            (
                "method = \"reinforce\"\nclip_ratio_low = 0.1",
                "training.loss.clip_ratio_low = 0.1: is not used by this training.loss.method; remove it",
            ),
            (
                "method = \"gspo\"\nclip_ratio_c = 3.0",
                "training.loss.clip_ratio_c = 3: is not used by this training.loss.method; remove it",
            ),
            (
                "clip_ratio_low = 1.0",
                "training.loss.clip_ratio_low = 1: must be more than 0 and less than 1",
            ),
        ] {
            assert_eq!(read(text).validate().unwrap_err().to_string(), message);
        }
    }
}
