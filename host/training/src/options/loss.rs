//! `[training.loss]`: the objective.

use serde::{Deserialize, Serialize};

use super::rules::{OptionsError, not_negative, positive, rule};
use crate::loss::{Aggregation, Bound, Clip, Divergence, Importance, Objective, Penalty, Span};

/// Which log-probs the ratio of the clipped surrogate is measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RatioFrom {
    /// Those that the engine recorded, of the full softmax at the sampling temperature. What top-p
    /// or top-k cut off is left out of account on both sides: a renormalised log-prob would shift
    /// every ratio by the mass that was cut, which says nothing about the policy.
    #[default]
    Recorded,
    /// Those that the trainer computes before the update; the gap to the recorded ones is then
    /// corrected by importance weights.
    Recomputed,
}

/// What importance weights do; they act with `ratio = "recomputed"` only, since a ratio to the
/// recorded log-probs already holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportanceKind {
    /// No weights.
    None,
    /// Weights cut at `importance_cap`.
    #[default]
    Truncate,
    /// Tokens whose weight is outside of `importance_low ..= importance_high` are left out.
    Mask,
}

/// `[training.loss]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// Lower clip range of the ratio. Default 0.2.
    pub clip_low: f64,
    /// Upper clip range of the ratio. Default 0.28.
    pub clip_high: f64,
    /// Bound on the loss of tokens with a negative advantage, in units of it. Default none.
    pub dual_clip: Option<f64>,
    /// What the ratio is measured from. Default `recorded`.
    pub ratio: RatioFrom,
    /// How token losses are summed up. Default `seq-mean-token-mean`.
    pub aggregation: Aggregation,
    /// Estimator of the divergence from the base model. Default `k3`.
    pub kl: Divergence,
    /// Factor on that divergence; 0 = off. Default 0.
    pub kl_coefficient: f64,
    /// Weigh the divergence by the ratio, so that its gradient is unbiased off-policy. Default false.
    pub kl_weighted: bool,
    /// Factor on the entropy that is subtracted from the loss. Default 0.
    pub entropy_bonus: f64,
    /// What importance weights do. Default `truncate`.
    pub importance: ImportanceKind,
    /// Over how many tokens a weight is formed. Default `token`.
    pub importance_span: Span,
    /// Largest weight when truncating. Default 2.
    pub importance_cap: f64,
    /// Smallest weight that is kept when masking. Default 0.5.
    pub importance_low: f64,
    /// Largest weight that is kept when masking. Default 2.
    pub importance_high: f64,
}

impl Default for LossOptions {
    fn default() -> Self {
        Self {
            clip_low: 0.2,
            clip_high: 0.28,
            dual_clip: None,
            ratio: RatioFrom::default(),
            aggregation: Aggregation::default(),
            kl: Divergence::default(),
            kl_coefficient: 0.0,
            kl_weighted: false,
            entropy_bonus: 0.0,
            importance: ImportanceKind::default(),
            importance_span: Span::default(),
            importance_cap: 2.0,
            importance_low: 0.5,
            importance_high: 2.0,
        }
    }
}

impl LossOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        rule(
            self.clip_low > 0.0 && self.clip_low < 1.0,
            "training.loss.clip_low",
            self.clip_low,
            "must be more than 0 and less than 1",
        )?;
        positive("training.loss.clip_high", self.clip_high)?;
        if let Some(factor) = self.dual_clip {
            rule(
                factor > 1.0 && factor.is_finite(),
                "training.loss.dual_clip",
                factor,
                "must be more than 1",
            )?;
        }
        not_negative("training.loss.kl_coefficient", self.kl_coefficient)?;
        rule(
            self.kl_coefficient == 0.0 || self.kl != Divergence::K1 || self.kl_weighted,
            "training.loss.kl",
            "k1",
            "has a derivative of one everywhere and teaches nothing as a penalty; take k2 or k3, or set kl_weighted",
        )?;
        not_negative("training.loss.entropy_bonus", self.entropy_bonus)?;
        positive("training.loss.importance_cap", self.importance_cap)?;
        not_negative("training.loss.importance_low", self.importance_low)?;
        rule(
            self.importance_high > self.importance_low && self.importance_high.is_finite(),
            "training.loss.importance_high",
            self.importance_high,
            "must be more than training.loss.importance_low",
        )
    }

    pub(crate) fn objective(&self) -> Objective {
        Objective {
            clip: Clip {
                low: self.clip_low,
                high: self.clip_high,
                dual: self.dual_clip,
            },
            penalty: Penalty {
                divergence: self.kl,
                coefficient: self.kl_coefficient,
                weighted: self.kl_weighted,
            },
            entropy_bonus: self.entropy_bonus,
        }
    }

    /// The importance weights that act; none when the ratio holds them already.
    pub(crate) fn importance(&self) -> Option<Importance> {
        let bound = match (self.ratio, self.importance) {
            (RatioFrom::Recorded, _) | (_, ImportanceKind::None) => return None,
            (_, ImportanceKind::Truncate) => Bound::Truncate {
                cap: self.importance_cap,
            },
            (_, ImportanceKind::Mask) => Bound::Mask {
                low: self.importance_low,
                high: self.importance_high,
            },
        };
        Some(Importance {
            span: self.importance_span,
            bound,
        })
    }
}
