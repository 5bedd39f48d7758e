//! Estimators of the divergence KL(policy || reference) from sampled tokens.
//!
//! With d = lp - lr: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman, "Approximating KL
//! divergence"). k1 and k3 are unbiased as *values*; as a *loss* k1 has a derivative of one
//! everywhere and therefore teaches nothing: use k2 or k3 to hold the policy near the reference.

use crate::real::Real;

/// Bound on the exponent of k3, so that one token that the policy abandoned cannot overflow a step.
const EXPONENT_BOUND: f64 = 20.0;

/// Range of the clamped k3.
const CLAMP: f64 = 10.0;

/// Which estimator. Default: k3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Divergence {
    /// d: unbiased value, useless derivative.
    K1,
    /// d^2 / 2: its derivative is d, which on fresh samples is that of the divergence.
    K2,
    /// exp(-d) - 1 + d: unbiased, never negative, derivative 1 - exp(-d).
    #[default]
    K3,
    /// k3 held inside [-10, 10]; beyond, the derivative is zero.
    K3Clamped,
}

/// Value and derivative of one token's estimate.
#[derive(Debug, Clone, Copy)]
pub struct Estimate<R> {
    /// The estimate.
    pub value: R,
    /// Its derivative with respect to the log-prob.
    pub d_logprob: R,
}

impl Divergence {
    /// The estimate of one token: its log-prob now and under the reference.
    pub fn token<R: Real>(self, logprob: R, reference: R) -> Estimate<R> {
        let d = logprob - reference;
        match self {
            Divergence::K1 => Estimate {
                value: d,
                d_logprob: R::ONE,
            },
            Divergence::K2 => Estimate {
                value: d * d / R::of(2.0),
                d_logprob: d,
            },
            Divergence::K3 => k3(d),
            Divergence::K3Clamped => {
                let estimate = k3(d);
                let bound = R::of(CLAMP);
                if estimate.value > bound {
                    Estimate {
                        value: bound,
                        d_logprob: R::ZERO,
                    }
                } else {
                    estimate
                }
            }
        }
    }

    /// The estimate weighted by the ratio exp(lp - lo), whose derivative is then unbiased although
    /// the tokens were drawn from an older policy.
    pub fn weighted<R: Real>(self, logprob: R, reference: R, old: R) -> Estimate<R> {
        let bound = R::of(EXPONENT_BOUND);
        let ratio = (logprob - old).within(-bound, bound).exp();
        let plain = self.token(logprob, reference);
        Estimate {
            value: ratio * plain.value,
            d_logprob: ratio * (plain.value + plain.d_logprob),
        }
    }
}

fn k3<R: Real>(d: R) -> Estimate<R> {
    let bound = R::of(EXPONENT_BOUND);
    let grown = (-d).within(-bound, bound).exp_m1();
    Estimate {
        value: grown + d,
        d_logprob: -grown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn derivatives_are_those_of_the_values(logprob in -6.0..0.0f64, reference in -6.0..0.0f64, old in -6.0..0.0f64) {
            let h = 1e-6;
            for kind in [Divergence::K1, Divergence::K2, Divergence::K3, Divergence::K3Clamped] {
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
        fn k3_is_never_negative(logprob in -30.0..0.0f32, reference in -30.0..0.0f32) {
            prop_assert!(Divergence::K3.token(logprob, reference).value >= -1e-6);
        }
    }
}
