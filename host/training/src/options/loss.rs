//! `[training.loss]`: the objective.

use serde::{Deserialize, Serialize};

use super::rules::{OptionsError, require, require_non_negative, require_positive};
use crate::loss::{
    Aggregation, Cispo, Dppo, Gspo, ImportanceLevel, ImportanceSampling, KlEstimator, KlPenalty,
    Objective, PpoClip, Sapo, Surrogate, WeightBound,
};

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

/// Importance sampling correction. Only used with `ratio = "recomputed"`: a ratio to the recorded log-probs already
/// contains it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ImportanceSamplingMode {
    /// No correction.
    None,
    /// Weights truncated at `importance_cap`.
    #[default]
    Truncate,
    /// Tokens whose weight is outside of `importance_low ..= importance_high` are masked.
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

/// `[training.loss]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// Policy-gradient loss. Default `ppo`.
    pub method: LossMethod,
    /// Lower clip distance of the ratio from 1, for `cispo` of its weight; for `dppo` the largest decrease of a probability.
    /// Default by method: ppo 0.2, gspo 3e-4, cispo 1 (no lower bound), dppo 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_low: Option<f64>,
    /// Upper clip distance of the ratio from 1; for `dppo` the largest increase of a probability. Default by method: ppo
    /// 0.28, gspo 4e-4, cispo 0.28, dppo 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// `ppo` only: dual clip, bounds the loss of tokens with a negative advantage to this factor times |advantage|. Default
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// `sapo` only: steepness of the gate for positive advantages. Default 1.
    pub sapo_positive: f64,
    /// `sapo` only: steepness of the gate for other advantages. Default 1.05.
    pub sapo_negative: f64,
    /// `dppo` only: factor on the squared change of a log-prob. Default 1e-3.
    pub dppo_tau: f64,
    /// `dppo` only: mask only tokens whose probability decreased too far, whatever their advantage; for distillation.
    /// Default false.
    pub dppo_one_sided: bool,
    /// Old log-probs of the ratio. Default `recorded`.
    pub ratio: OldLogprobsSource,
    /// Aggregation of token losses. Default `seq-mean-token-mean`.
    pub aggregation: Aggregation,
    /// Estimator of the KL divergence from the base model. Default `k3`.
    pub kl: KlEstimator,
    /// Coefficient of the KL penalty; 0 = off. Default 0.
    pub kl_coefficient: f64,
    /// Weight the KL estimate by the ratio, which makes its gradient unbiased off-policy. Default false.
    pub kl_weighted: bool,
    /// Coefficient of the entropy bonus. Default 0.
    pub entropy_bonus: f64,
    /// Importance sampling correction. Default `truncate`.
    pub importance: ImportanceSamplingMode,
    /// Level of the importance weights. Default `token`.
    pub importance_span: ImportanceLevel,
    /// Largest weight with `truncate`. Default 2.
    pub importance_cap: f64,
    /// Smallest weight that is not masked with `mask`. Default 0.5.
    pub importance_low: f64,
    /// Largest weight that is not masked with `mask`. Default 2.
    pub importance_high: f64,
}

impl Default for LossOptions {
    fn default() -> Self {
        Self {
            method: LossMethod::default(),
            clip_low: None,
            clip_high: None,
            dual_clip: None,
            sapo_positive: 1.0,
            sapo_negative: 1.05,
            dppo_tau: 1e-3,
            dppo_one_sided: false,
            ratio: OldLogprobsSource::default(),
            aggregation: Aggregation::default(),
            kl: KlEstimator::default(),
            kl_coefficient: 0.0,
            kl_weighted: false,
            entropy_bonus: 0.0,
            importance: ImportanceSamplingMode::default(),
            importance_span: ImportanceLevel::default(),
            importance_cap: 2.0,
            importance_low: 0.5,
            importance_high: 2.0,
        }
    }
}

impl LossOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        self.validate_method()?;
        require_non_negative("training.loss.kl_coefficient", self.kl_coefficient)?;
        require(
            self.kl_coefficient == 0.0 || self.kl != KlEstimator::K1 || self.kl_weighted,
            "training.loss.kl",
            "k1",
            "has a constant derivative and has no effect as a penalty; use k2 or k3, or set training.loss.kl_weighted",
        )?;
        require_non_negative("training.loss.entropy_bonus", self.entropy_bonus)?;
        require_positive("training.loss.importance_cap", self.importance_cap)?;
        require_non_negative("training.loss.importance_low", self.importance_low)?;
        require(
            self.importance_high > self.importance_low && self.importance_high.is_finite(),
            "training.loss.importance_high",
            self.importance_high,
            "must be more than training.loss.importance_low",
        )
    }

    /// Checks the clip range of the method and rejects keys that the method does not use.
    fn validate_method(&self) -> Result<(), OptionsError> {
        let method = self.method;
        let clips = !matches!(method, LossMethod::Sapo | LossMethod::Reinforce);
        for (key, value) in [
            ("training.loss.clip_low", self.clip_low),
            ("training.loss.clip_high", self.clip_high),
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
        if let Some(low) = self.clip_low {
            require(
                low < 1.0 || (low <= 1.0 && method == LossMethod::Cispo),
                "training.loss.clip_low",
                low,
                "must be more than 0 and less than 1",
            )?;
        }
        if let Some(factor) = self.dual_clip {
            require(
                method == LossMethod::Ppo,
                "training.loss.dual_clip",
                factor,
                "is not used by this training.loss.method; remove it",
            )?;
            require(
                factor > 1.0 && factor.is_finite(),
                "training.loss.dual_clip",
                factor,
                "must be more than 1",
            )?;
        }
        require_positive("training.loss.sapo_positive", self.sapo_positive)?;
        require_positive("training.loss.sapo_negative", self.sapo_negative)?;
        require_non_negative("training.loss.dppo_tau", self.dppo_tau)?;
        require(
            !self.dppo_one_sided || method == LossMethod::Dppo,
            "training.loss.dppo_one_sided",
            true,
            "is not used by this training.loss.method; remove it",
        )?;
        require(
            !self.dppo_one_sided || self.clip_high.is_none(),
            "training.loss.clip_high",
            self.clip_high.unwrap_or_default(),
            "is not used with training.loss.dppo_one_sided; remove it",
        )
    }

    fn surrogate(&self) -> Surrogate {
        let low = |default: f64| self.clip_low.unwrap_or(default);
        let high = |default: f64| self.clip_high.unwrap_or(default);
        let (ppo, gspo, dppo) = (PpoClip::default(), Gspo::default(), Dppo::default());
        match self.method {
            LossMethod::Ppo => Surrogate::Ppo(PpoClip {
                low: low(ppo.low),
                high: high(ppo.high),
                dual: self.dual_clip,
            }),
            LossMethod::Gspo => Surrogate::Gspo(Gspo {
                low: low(gspo.low),
                high: high(gspo.high),
            }),
            LossMethod::Cispo => Surrogate::Cispo(Cispo {
                low: 1.0 - low(1.0),
                high: 1.0 + high(0.28),
            }),
            LossMethod::Sapo => Surrogate::Sapo(Sapo {
                positive: self.sapo_positive,
                negative: self.sapo_negative,
            }),
            LossMethod::Dppo => Surrogate::Dppo(Dppo {
                low: low(dppo.low),
                high: high(dppo.high),
                tau: self.dppo_tau,
                one_sided: self.dppo_one_sided,
            }),
            LossMethod::Reinforce => Surrogate::Reinforce,
        }
    }

    pub(crate) fn objective(&self) -> Objective {
        Objective {
            surrogate: self.surrogate(),
            penalty: KlPenalty {
                estimator: self.kl,
                coefficient: self.kl_coefficient,
                weighted: self.kl_weighted,
            },
            entropy_bonus: self.entropy_bonus,
        }
    }

    /// The importance sampling correction; none if the ratio already contains it.
    pub(crate) fn importance(&self) -> Option<ImportanceSampling> {
        let bound = match (self.ratio, self.importance) {
            (OldLogprobsSource::Recorded, _) | (_, ImportanceSamplingMode::None) => return None,
            (_, ImportanceSamplingMode::Truncate) => WeightBound::Truncate {
                cap: self.importance_cap,
            },
            (_, ImportanceSamplingMode::Mask) => WeightBound::Mask {
                low: self.importance_low,
                high: self.importance_high,
            },
        };
        Some(ImportanceSampling {
            level: self.importance_span,
            bound,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> LossOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn each_method_has_its_own_clip_range() {
        let surrogate = |text: &str| {
            let options = read(text);
            options.validate().unwrap();
            options.objective().surrogate
        };
        assert_eq!(surrogate(""), Surrogate::Ppo(PpoClip::default()));
        assert_eq!(
            surrogate("method = \"gspo\""),
            Surrogate::Gspo(Gspo::default())
        );
        assert_eq!(
            surrogate("method = \"cispo\""),
            Surrogate::Cispo(Cispo::default())
        );
        assert_eq!(
            surrogate("method = \"sapo\""),
            Surrogate::Sapo(Sapo::default())
        );
        assert_eq!(
            surrogate("method = \"dppo\""),
            Surrogate::Dppo(Dppo::default())
        );
        assert_eq!(surrogate("method = \"reinforce\""), Surrogate::Reinforce);
        assert_eq!(
            surrogate("method = \"cispo\"\nclip_low = 0.2\nclip_high = 4.0"),
            Surrogate::Cispo(Cispo {
                low: 0.8,
                high: 5.0
            })
        );
    }

    #[test]
    fn the_dual_clip_is_off_by_default() {
        let ppo = |text: &str| match read(text).surrogate() {
            Surrogate::Ppo(clip) => clip,
            other => panic!("{other:?}"),
        };
        let (off, on) = (ppo(""), ppo("dual_clip = 3.0"));
        assert_eq!((off.dual, on.dual), (None, Some(3.0)));
        // A token with a negative advantage whose probability rose 20-fold.
        let (now, old) = (0.05f64.ln() + 20f64.ln(), 0.05f64.ln());
        let (off, on) = (off.token(now, old, -1.0), on.token(now, old, -1.0));
        assert!(
            (off.loss - 20.0).abs() < 1e-9 && off.d_logprob > 0.0,
            "{off:?}"
        );
        assert!(
            (on.loss - 3.0).abs() < 1e-9 && on.d_logprob == 0.0,
            "{on:?}"
        );
    }

    #[test]
    fn keys_that_the_method_does_not_use_are_rejected() {
        for (text, message) in [
            (
                "method = \"reinforce\"\nclip_low = 0.1",
                "training.loss.clip_low = 0.1: is not used by this training.loss.method; remove it",
            ),
            (
                "method = \"gspo\"\ndual_clip = 3.0",
                "training.loss.dual_clip = 3: is not used by this training.loss.method; remove it",
            ),
            (
                "clip_low = 1.0",
                "training.loss.clip_low = 1: must be more than 0 and less than 1",
            ),
        ] {
            assert_eq!(read(text).validate().unwrap_err().to_string(), message);
        }
    }
}
