//! Estimators of KL(policy || reference) from sampled tokens.
//!
//! With d = lp - lr: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman, "Approximating KL divergence"). k1 and k3 are
//! unbiased *values*; as a *loss* k1 is useless, because its derivative is 1 everywhere. Use k2 or k3 to keep the policy
//! near the reference.

use clawhost_config::KlEstimator;

use crate::float::Float;

/// Bound on the exponent of k3, so that a token whose probability collapsed cannot overflow a step.
const EXPONENT_BOUND: f64 = 20.0;

/// Range of the clamped k3.
const CLAMP: f64 = 10.0;

/// Value and derivative of one token's estimate.
#[derive(Debug, Clone, Copy)]
pub struct KlEstimate<R> {
    /// The estimate.
    pub value: R,
    /// Its derivative with respect to the log-prob.
    pub d_logprob: R,
}

/// The estimate of a KL divergence, token by token.
pub trait KlTerm {
    /// The estimate of one token from its log-probs under the policy and the reference.
    fn token<R: Float>(self, logprob: R, reference: R) -> KlEstimate<R>;
    /// The estimate weighted by the ratio exp(lp - lo), which makes its derivative unbiased for tokens sampled from an older
    /// policy.
    fn weighted<R: Float>(self, logprob: R, reference: R, old: R) -> KlEstimate<R>;
}

impl KlTerm for KlEstimator {
    fn token<R: Float>(self, logprob: R, reference: R) -> KlEstimate<R> {
        let d = logprob - reference;
        match self {
            KlEstimator::K1 => KlEstimate {
                value: d,
                d_logprob: R::ONE,
            },
            KlEstimator::K2 => KlEstimate {
                value: d * d / R::from_f64(2.0),
                d_logprob: d,
            },
            KlEstimator::K3 => k3(d),
            KlEstimator::K3Clamped => {
                let estimate = k3(d);
                let bound = R::from_f64(CLAMP);
                if estimate.value > bound {
                    KlEstimate {
                        value: bound,
                        d_logprob: R::ZERO,
                    }
                } else {
                    estimate
                }
            }
        }
    }

    fn weighted<R: Float>(self, logprob: R, reference: R, old: R) -> KlEstimate<R> {
        let bound = R::from_f64(EXPONENT_BOUND);
        let ratio = (logprob - old).clamp(-bound, bound).exp();
        let plain = self.token(logprob, reference);
        KlEstimate {
            value: ratio * plain.value,
            d_logprob: ratio * (plain.value + plain.d_logprob),
        }
    }
}

fn k3<R: Float>(d: R) -> KlEstimate<R> {
    let bound = R::from_f64(EXPONENT_BOUND);
    let ratio_less_one = (-d).clamp(-bound, bound).exp_m1();
    KlEstimate {
        value: ratio_less_one + d,
        d_logprob: -ratio_less_one,
    }
}

/// Sum over tokens of the clamped k3 estimate of KL(`then` || `now`), from tokens sampled under `then`. Without the clamp a
/// single token whose probability collapsed would decide the mean.
pub(crate) fn sum_kl(now: &[f32], then: &[f32]) -> f64 {
    now.iter()
        .zip(then)
        .map(|(&now, &then)| f64::from(KlEstimator::K3Clamped.token(then, now).value))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn derivatives_match_finite_differences(logprob in -6.0..0.0f64, reference in -6.0..0.0f64, old in -6.0..0.0f64) {
            let h = 1e-6;
            for kind in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3, KlEstimator::K3Clamped] {
                let here = kind.token(logprob, reference);
                prop_assume!((here.value - CLAMP).abs() > 1e-2);
                let slope = (kind.token(logprob + h, reference).value - kind.token(logprob - h, reference).value) / (2.0 * h);
                prop_assert!((slope - here.d_logprob).abs() < 1e-5 * (1.0 + slope.abs()), "{kind:?} {slope} {here:?}");
                let here = kind.weighted(logprob, reference, old);
                let slope = (kind.weighted(logprob + h, reference, old).value - kind.weighted(logprob - h, reference, old).value) / (2.0 * h);
                prop_assert!((slope - here.d_logprob).abs() < 1e-5 * (1.0 + slope.abs()), "weighted {kind:?} {slope} {here:?}");
            }
        }

        #[test]
        fn no_token_adds_more_than_the_clamp_to_a_sum(policy in -30.0..0.0f32, reference in -90.0..0.0f32) {
            let sum = sum_kl(&[reference, policy], &[policy, policy]);
            prop_assert!((-1e-6..=CLAMP).contains(&sum), "{sum}");
        }

        #[test]
        fn k3_is_never_negative(logprob in -30.0..0.0f32, reference in -30.0..0.0f32) {
            prop_assert!(KlEstimator::K3.token(logprob, reference).value >= -1e-6);
        }
    }
}
