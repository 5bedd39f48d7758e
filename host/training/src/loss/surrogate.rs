//! The policy-gradient term of a reply, by the name of the method.
//!
//! Each returns, per token, the loss to be minimised and its derivative with respect to the token's own
//! log-prob. r = exp(lp - lo) throughout.

use crate::loss::cispo::Cispo;
use crate::loss::dppo::Dppo;
use crate::loss::gspo::Gspo;
use crate::loss::ppo::Clip;
use crate::loss::sapo::Sapo;
use crate::real::Real;

/// Bounds on the log-ratio before it is exponentiated: a guard for the arithmetic, far outside of
/// any clip. A loss is constant beyond it.
pub(super) const LOG_RATIO_BOUND: f64 = 20.0;

/// How an advantage pulls on the log-probs of a reply. Default: the clipped surrogate of PPO.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Surrogate {
    /// PPO: the ratio of each token is clipped.
    Ppo(Clip),
    /// GSPO: the ratio of the whole reply is clipped.
    Gspo(Gspo),
    /// CISPO: the clipped ratio is a constant weight; every token keeps its gradient.
    Cispo(Cispo),
    /// SAPO: a smooth gate takes the place of the clip.
    Sapo(Sapo),
    /// DPPO: tokens whose probability has moved too far are left out.
    Dppo(Dppo),
    /// REINFORCE: -A lp, no ratio.
    Reinforce,
}

impl Default for Surrogate {
    fn default() -> Self {
        Surrogate::Ppo(Clip::default())
    }
}

/// The term of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term<R> {
    /// exp(lp - lo) of the token, or of the whole reply where that is what counts.
    pub ratio: R,
    /// Loss of the token, to be minimised.
    pub loss: R,
    /// Derivative of the loss of the whole reply (tokens weighed alike) with respect to its log-prob.
    pub d_logprob: R,
    /// Whether a bound decided.
    pub clipped: bool,
}

impl<R: Real> Term<R> {
    /// Of a token that does not train.
    pub(super) fn none() -> Self {
        Self {
            ratio: R::ONE,
            loss: R::ZERO,
            d_logprob: R::ZERO,
            clipped: false,
        }
    }
}

/// lp - lo as it may be exponentiated, and whether the guard moved it.
pub(super) fn guarded<R: Real>(logprob: R, old: R) -> (R, bool) {
    let bound = R::of(LOG_RATIO_BOUND);
    let difference = logprob - old;
    let moved = difference < -bound || difference > bound;
    (difference.within(-bound, bound), moved)
}

impl Surrogate {
    /// The terms of one reply; `mask` says which tokens train, empty = all. The slices have one entry
    /// per token.
    pub fn terms<R: Real>(
        &self,
        logprobs: &[R],
        old: &[R],
        advantages: &[R],
        mask: &[bool],
    ) -> Vec<Term<R>> {
        if let Surrogate::Gspo(gspo) = self {
            return gspo.terms(logprobs, old, advantages, mask);
        }
        logprobs
            .iter()
            .zip(old)
            .zip(advantages)
            .enumerate()
            .map(|(t, ((&logprob, &old), &advantage))| {
                if !mask.get(t).copied().unwrap_or(true) {
                    return Term::none();
                }
                match self {
                    Surrogate::Ppo(clip) => clip.token(logprob, old, advantage),
                    Surrogate::Cispo(cispo) => cispo.token(logprob, old, advantage),
                    Surrogate::Sapo(sapo) => sapo.token(logprob, old, advantage),
                    Surrogate::Dppo(dppo) => dppo.token(logprob, old, advantage),
                    Surrogate::Reinforce | Surrogate::Gspo(_) => Term {
                        ratio: guarded(logprob, old).0.exp(),
                        loss: -(advantage * logprob),
                        d_logprob: -advantage,
                        clipped: false,
                    },
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every method whose loss is the antiderivative of its gradient. CISPO's is not: its weight is a
    /// constant to the gradient.
    fn methods() -> impl Strategy<Value = Surrogate> {
        prop_oneof![
            Just(Surrogate::Ppo(Clip::default())),
            Just(Surrogate::Gspo(Gspo::default())),
            Just(Surrogate::Gspo(Gspo {
                low: 0.2,
                high: 0.28
            })),
            Just(Surrogate::Sapo(Sapo::default())),
            Just(Surrogate::Dppo(Dppo::default())),
            Just(Surrogate::Dppo(Dppo {
                one_sided: true,
                ..Dppo::default()
            })),
            Just(Surrogate::Reinforce),
        ]
    }

    fn tokens() -> impl Strategy<Value = Vec<(f64, f64, f64, bool)>> {
        prop::collection::vec(
            (-4.0..-0.1f64, -0.5..0.5f64, -2.0..2.0f64, prop::bool::ANY),
            1..7,
        )
    }

    fn total(terms: &[Term<f64>]) -> f64 {
        terms.iter().map(|term| term.loss).sum()
    }

    proptest! {
        #[test]
        fn partials_are_the_slopes_of_the_sum(method in methods(), tokens in tokens()) {
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.3).collect();
            let at = |now: &[f64]| method.terms(now, &old, &advantages, &mask);
            let here = at(&now);
            let h = 1e-6;
            for t in 0..now.len() {
                let (mut up, mut down) = (now.clone(), now.clone());
                up[t] += h;
                down[t] -= h;
                let (up, down) = (at(&up), at(&down));
                // At a corner there is no slope.
                prop_assume!(up.iter().zip(&down).all(|(u, d)| u.clipped == d.clipped));
                let slope = (total(&up) - total(&down)) / (2.0 * h);
                prop_assert!((slope - here[t].d_logprob).abs() < 1e-6 * (1.0 + slope.abs()), "{method:?} token {t}: {slope} {here:?}");
            }
        }

        #[test]
        fn a_weight_that_is_a_constant_scales_the_slope(tokens in tokens()) {
            let cispo = Cispo::default();
            for (old, change, advantage, _) in tokens {
                let now = old + change;
                let term = Surrogate::Cispo(cispo).terms(&[now], &[old], &[advantage], &[])[0];
                let weight = (now - old).exp().clamp(cispo.low, cispo.high);
                let at = |now: f64| -weight * advantage * now;
                let slope = (at(now + 1e-6) - at(now - 1e-6)) / 2e-6;
                prop_assert!((term.loss - at(now)).abs() < 1e-9);
                prop_assert!((term.d_logprob - slope).abs() < 1e-6 * (1.0 + slope.abs()), "{term:?}");
            }
        }

        #[test]
        fn padding_changes_nothing(method in methods(), tokens in tokens(), padding in prop::collection::vec(-9.0..0.0f64, 0..4)) {
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.3).collect();
            let bare = method.terms(&now, &old, &advantages, &mask);
            let longer = |values: &[f64]| -> Vec<f64> { values.iter().chain(&padding).copied().collect() };
            let mut padded = mask.clone();
            padded.resize(mask.len() + padding.len(), false);
            let whole = method.terms(&longer(&now), &longer(&old), &longer(&advantages), &padded);
            prop_assert_eq!(&bare[..], &whole[..bare.len()]);
            prop_assert!(whole[bare.len()..].iter().all(|term| term.loss == 0.0 && term.d_logprob == 0.0));
        }

        #[test]
        fn at_a_ratio_of_one_every_method_is_reinforce(old in -5.0..0.0f64, advantage in -2.0..2.0f64) {
            let methods = [
                Surrogate::default(), Surrogate::Gspo(Gspo::default()), Surrogate::Cispo(Cispo::default()),
                Surrogate::Sapo(Sapo::default()), Surrogate::Dppo(Dppo::default()), Surrogate::Reinforce,
            ];
            for method in methods {
                let terms = method.terms(&[old], &[old], &[advantage], &[]);
                prop_assert!((terms[0].d_logprob + advantage).abs() < 1e-9, "{method:?}: {terms:?}");
            }
        }

        #[test]
        fn a_masked_token_neither_pulls_nor_counts(method in methods(), tokens in tokens(), other in -3.0..0.0f64) {
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.3).collect();
            let here = method.terms(&now, &old, &advantages, &mask);
            let changed: Vec<f64> = now.iter().zip(&mask).map(|(&lp, &m)| if m { lp } else { other }).collect();
            prop_assert_eq!(&here, &method.terms(&changed, &old, &advantages, &mask));
            for (term, trains) in here.iter().zip(&mask) {
                prop_assert!(*trains || (term.loss == 0.0 && term.d_logprob == 0.0));
            }
        }
    }
}
