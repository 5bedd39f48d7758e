//! The algorithms that `[training]` configures.

use clawhost_config::{
    AdvantageOptions, ImportanceSamplingMode, LossMethod, LossOptions, OldLogprobsSource,
    TeacherOptions,
};

use crate::advantage::OverlongPenalty;
use crate::loss::{
    Cispo, Dppo, Gspo, ImportanceSampling, KlPenalty, Objective, OnPolicyDistillation, PpoClip,
    Sapo, Surrogate, TopKDistillation, TopKSelect, WeightBound,
};

fn surrogate(options: &LossOptions) -> Surrogate {
    let low = |default: f64| options.clip_ratio_low.unwrap_or(default);
    let high = |default: f64| options.clip_ratio_high.unwrap_or(default);
    let (ppo, gspo, dppo) = (PpoClip::default(), Gspo::default(), Dppo::default());
    match options.method {
        LossMethod::Ppo => Surrogate::Ppo(PpoClip {
            low: low(ppo.low),
            high: high(ppo.high),
            dual: options.clip_ratio_c,
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
            positive: options.sapo_temperature_pos,
            negative: options.sapo_temperature_neg,
        }),
        LossMethod::Dppo => Surrogate::Dppo(Dppo {
            low: low(dppo.low),
            high: high(dppo.high),
            tau: options.dppo_tau,
            one_sided: options.dppo_one_sided,
        }),
        LossMethod::Reinforce => Surrogate::Reinforce,
    }
}

/// The objective of `[training.loss]`.
pub(crate) fn objective(options: &LossOptions) -> Objective {
    Objective {
        surrogate: surrogate(options),
        penalty: KlPenalty {
            estimator: options.kl_estimator,
            coefficient: options.kl_coef,
            weighted: options.kl_weighted,
        },
        entropy_bonus: options.entropy_coef,
    }
}

/// The importance sampling correction; none if the ratio already contains it.
pub(crate) fn importance_sampling(options: &LossOptions) -> Option<ImportanceSampling> {
    let bound = match (options.old_logprobs, options.importance_sampling) {
        (OldLogprobsSource::Recorded, _) | (_, ImportanceSamplingMode::None) => return None,
        (_, ImportanceSamplingMode::Truncate) => WeightBound::Truncate {
            cap: options.importance_sampling_max,
        },
        (_, ImportanceSamplingMode::Mask) => WeightBound::Mask {
            low: options.importance_sampling_min,
            high: options.importance_sampling_max,
        },
    };
    Some(ImportanceSampling {
        level: options.importance_sampling_level,
        bound,
    })
}

impl From<&TeacherOptions> for OnPolicyDistillation {
    fn from(options: &TeacherOptions) -> Self {
        Self {
            weight_rl: options.reward_weight,
            weight_opd: options.distillation_weight,
            bound: options.max_logprob_gap,
            discount: options.gamma,
        }
    }
}

impl From<&TeacherOptions> for TopKDistillation {
    fn from(options: &TeacherOptions) -> Self {
        Self {
            direction: options.divergence,
            tail: options.top_k_tail,
        }
    }
}

/// The selection of tokens by `hybrid-topk`.
pub(crate) fn topk_select(options: &TeacherOptions) -> TopKSelect {
    let default = TopKSelect::default();
    TopKSelect {
        bound: options.max_logprob_gap.unwrap_or(default.bound),
        ..default
    }
}

/// The overlong penalty, if configured.
pub(crate) fn overlong_penalty(options: &AdvantageOptions) -> Option<OverlongPenalty> {
    let longest = options.overlong_length?;
    Some(OverlongPenalty {
        longest,
        buffer: options.overlong_buffer.unwrap_or((longest / 5).max(1)),
        penalty: options.overlong_penalty.unwrap_or(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> LossOptions {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn each_method_has_its_own_clip_range() {
        let built = |text: &str| {
            let options = read(text);
            options.validate().unwrap();
            objective(&options).surrogate
        };
        assert_eq!(built(""), Surrogate::Ppo(PpoClip::default()));
        assert_eq!(built("method = \"gspo\""), Surrogate::Gspo(Gspo::default()));
        assert_eq!(
            built("method = \"cispo\""),
            Surrogate::Cispo(Cispo::default())
        );
        assert_eq!(built("method = \"sapo\""), Surrogate::Sapo(Sapo::default()));
        assert_eq!(built("method = \"dppo\""), Surrogate::Dppo(Dppo::default()));
        assert_eq!(built("method = \"reinforce\""), Surrogate::Reinforce);
        assert_eq!(
            built("method = \"cispo\"\nclip_ratio_low = 0.2\nclip_ratio_high = 4.0"),
            Surrogate::Cispo(Cispo {
                low: 0.8,
                high: 5.0
            })
        );
    }

    #[test]
    fn the_dual_clip_is_off_by_default() {
        let ppo = |text: &str| match surrogate(&read(text)) {
            Surrogate::Ppo(clip) => clip,
            other => panic!("{other:?}"),
        };
        let (off, on) = (ppo(""), ppo("clip_ratio_c = 3.0"));
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
    fn the_overlong_penalty_has_defaults() {
        assert_eq!(overlong_penalty(&AdvantageOptions::default()), None);
        let options: AdvantageOptions = toml::from_str("overlong_length = 100").unwrap();
        let overlong = overlong_penalty(&options).unwrap();
        assert_eq!((overlong.buffer, overlong.penalty), (20, 1.0));
    }

    #[test]
    fn importance_weights_are_bounded_as_configured() {
        assert_eq!(importance_sampling(&LossOptions::default()), None);
        let options = read("old_logprobs = \"recomputed\"\nimportance_sampling = \"mask\"");
        let bound = importance_sampling(&options).map(|sampling| sampling.bound);
        let (low, high) = (0.5, 2.0);
        assert_eq!(bound, Some(WeightBound::Mask { low, high }));
    }
}
