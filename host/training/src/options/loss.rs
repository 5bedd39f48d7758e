//! `[training.loss]`: the objective.

use serde::{Deserialize, Serialize};

use super::rules::{OptionsError, not_negative, positive, rule};
use crate::loss::{
    Aggregation, Bound, Cispo, Clip, Divergence, Dppo, Gspo, Importance, Objective, Penalty, Sapo,
    Span, Surrogate,
};

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

/// How advantages pull on log-probs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The ratio of each token is clipped.
    #[default]
    Ppo,
    /// The ratio of the whole reply is clipped.
    Gspo,
    /// The clipped ratio is a constant weight, so that every token keeps its gradient.
    Cispo,
    /// A smooth gate takes the place of the clip.
    Sapo,
    /// Tokens whose probability has moved too far are left out.
    Dppo,
    /// No ratio at all; for a single update a batch.
    Reinforce,
}

/// `[training.loss]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// How advantages pull on log-probs. Default `ppo`.
    pub method: Method,
    /// How far below one the ratio counts: the weight of `cispo`, for `dppo` the fall of a probability.
    /// Default by method: ppo 0.2, gspo 3e-4, cispo 1 (no lower bound), dppo 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_low: Option<f64>,
    /// How far above one the ratio counts; for `dppo` the rise of a probability. Default by method: ppo
    /// 0.28, gspo 4e-4, cispo 0.28, dppo 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// `ppo` only: bound on the loss of tokens with a negative advantage, in units of it. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// `sapo` only: steepness of the gate for positive advantages. Default 1.
    pub sapo_positive: f64,
    /// `sapo` only: steepness of the gate for other advantages. Default 1.05.
    pub sapo_negative: f64,
    /// `dppo` only: factor on the squared change of a log-prob. Default 1e-3.
    pub dppo_tau: f64,
    /// `dppo` only: leave out what fell too far, whatever its advantage, and nothing that rose; for learning from a
    /// teacher. Default false.
    pub dppo_one_sided: bool,
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
            method: Method::default(),
            clip_low: None,
            clip_high: None,
            dual_clip: None,
            sapo_positive: 1.0,
            sapo_negative: 1.05,
            dppo_tau: 1e-3,
            dppo_one_sided: false,
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
        self.validate_method()?;
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

    /// The bounds of the method, and that nothing is set that the method does not know.
    fn validate_method(&self) -> Result<(), OptionsError> {
        let method = self.method;
        let clips = !matches!(method, Method::Sapo | Method::Reinforce);
        for (key, value) in [
            ("training.loss.clip_low", self.clip_low),
            ("training.loss.clip_high", self.clip_high),
        ] {
            let Some(value) = value else { continue };
            rule(
                clips,
                key,
                value,
                "does nothing with this training.loss.method; leave it out",
            )?;
            positive(key, value)?;
        }
        if let Some(low) = self.clip_low {
            rule(
                low < 1.0 || (low <= 1.0 && method == Method::Cispo),
                "training.loss.clip_low",
                low,
                "must be more than 0 and less than 1",
            )?;
        }
        if let Some(factor) = self.dual_clip {
            rule(
                method == Method::Ppo,
                "training.loss.dual_clip",
                factor,
                "does nothing with this training.loss.method; leave it out",
            )?;
            rule(
                factor > 1.0 && factor.is_finite(),
                "training.loss.dual_clip",
                factor,
                "must be more than 1",
            )?;
        }
        positive("training.loss.sapo_positive", self.sapo_positive)?;
        positive("training.loss.sapo_negative", self.sapo_negative)?;
        not_negative("training.loss.dppo_tau", self.dppo_tau)?;
        rule(
            !self.dppo_one_sided || method == Method::Dppo,
            "training.loss.dppo_one_sided",
            true,
            "does nothing with this training.loss.method; leave it out",
        )?;
        rule(
            !self.dppo_one_sided || self.clip_high.is_none(),
            "training.loss.clip_high",
            self.clip_high.unwrap_or_default(),
            "does nothing with training.loss.dppo_one_sided; leave it out",
        )
    }

    fn surrogate(&self) -> Surrogate {
        let low = |default: f64| self.clip_low.unwrap_or(default);
        let high = |default: f64| self.clip_high.unwrap_or(default);
        let (ppo, gspo, dppo) = (Clip::default(), Gspo::default(), Dppo::default());
        match self.method {
            Method::Ppo => Surrogate::Ppo(Clip {
                low: low(ppo.low),
                high: high(ppo.high),
                dual: self.dual_clip,
            }),
            Method::Gspo => Surrogate::Gspo(Gspo {
                low: low(gspo.low),
                high: high(gspo.high),
            }),
            Method::Cispo => Surrogate::Cispo(Cispo {
                low: 1.0 - low(1.0),
                high: 1.0 + high(0.28),
            }),
            Method::Sapo => Surrogate::Sapo(Sapo {
                positive: self.sapo_positive,
                negative: self.sapo_negative,
            }),
            Method::Dppo => Surrogate::Dppo(Dppo {
                low: low(dppo.low),
                high: high(dppo.high),
                tau: self.dppo_tau,
                one_sided: self.dppo_one_sided,
            }),
            Method::Reinforce => Surrogate::Reinforce,
        }
    }

    pub(crate) fn objective(&self) -> Objective {
        Objective {
            surrogate: self.surrogate(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> LossOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn each_method_has_its_own_bounds() {
        let of = |text: &str| {
            let options = read(text);
            options.validate().unwrap();
            options.objective().surrogate
        };
        assert_eq!(of(""), Surrogate::Ppo(Clip::default()));
        assert_eq!(of("method = \"gspo\""), Surrogate::Gspo(Gspo::default()));
        assert_eq!(of("method = \"cispo\""), Surrogate::Cispo(Cispo::default()));
        assert_eq!(of("method = \"sapo\""), Surrogate::Sapo(Sapo::default()));
        assert_eq!(of("method = \"dppo\""), Surrogate::Dppo(Dppo::default()));
        assert_eq!(of("method = \"reinforce\""), Surrogate::Reinforce);
        assert_eq!(
            of("method = \"cispo\"\nclip_low = 0.2\nclip_high = 4.0"),
            Surrogate::Cispo(Cispo {
                low: 0.8,
                high: 5.0
            })
        );
    }

    #[test]
    fn the_dual_clip_is_off_unless_it_is_set() {
        let ppo = |text: &str| match read(text).surrogate() {
            Surrogate::Ppo(clip) => clip,
            other => panic!("{other:?}"),
        };
        let (off, on) = (ppo(""), ppo("dual_clip = 3.0"));
        assert_eq!((off.dual, on.dual), (None, Some(3.0)));
        // A token that became 20 times as likely although it was punished.
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
    fn what_a_method_does_not_know_is_refused() {
        for (text, message) in [
            (
                "method = \"reinforce\"\nclip_low = 0.1",
                "training.loss.clip_low = 0.1: does nothing with this training.loss.method; leave it out",
            ),
            (
                "method = \"gspo\"\ndual_clip = 3.0",
                "training.loss.dual_clip = 3: does nothing with this training.loss.method; leave it out",
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
