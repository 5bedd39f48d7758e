//! Policy-gradient surrogates, selected by `training.loss.method`.
//!
//! Each returns the loss of every token (to be minimized) and its derivative with respect to the token's log-prob. r is
//! exp(lp - lo) throughout.

use crate::float::Float;
use crate::loss::cispo::Cispo;
use crate::loss::dppo::Dppo;
use crate::loss::gspo::Gspo;
use crate::loss::mask::trains;
use crate::loss::ppo::PpoClip;
use crate::loss::sapo::Sapo;
use crate::loss::token_loss::{TokenLoss, bounded_log_ratio};

/// The surrogate. Default: PPO's clipped surrogate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Surrogate {
    /// PPO: the ratio of each token is clipped.
    Ppo(PpoClip),
    /// GSPO: the sequence-level ratio is clipped.
    Gspo(Gspo),
    /// CISPO: the clipped ratio is a constant weight; every token keeps its gradient.
    Cispo(Cispo),
    /// SAPO: a smooth gate replaces the clip.
    Sapo(Sapo),
    /// DPPO: tokens whose probability moved too far are masked.
    Dppo(Dppo),
    /// REINFORCE: -A lp, no ratio.
    Reinforce,
}

impl Default for Surrogate {
    fn default() -> Self {
        Surrogate::Ppo(PpoClip::default())
    }
}

impl Surrogate {
    /// The token losses of one reply; `mask` selects the trained tokens, empty = all. The slices have one entry per token.
    pub fn token_losses<R: Float>(
        &self,
        logprobs: &[R],
        old: &[R],
        advantages: &[R],
        mask: &[bool],
    ) -> Vec<TokenLoss<R>> {
        if let Surrogate::Gspo(gspo) = self {
            return gspo.token_losses(logprobs, old, advantages, mask);
        }
        logprobs
            .iter()
            .zip(old)
            .zip(advantages)
            .enumerate()
            .map(|(t, ((&logprob, &old), &advantage))| {
                if !trains(mask, t) {
                    return TokenLoss::masked();
                }
                match self {
                    Surrogate::Ppo(clip) => clip.token(logprob, old, advantage),
                    Surrogate::Cispo(cispo) => cispo.token(logprob, old, advantage),
                    Surrogate::Sapo(sapo) => sapo.token(logprob, old, advantage),
                    Surrogate::Dppo(dppo) => dppo.token(logprob, old, advantage),
                    Surrogate::Reinforce | Surrogate::Gspo(_) => TokenLoss {
                        ratio: bounded_log_ratio(logprob, old).0.exp(),
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

    /// Every method whose derivative is that of its loss. CISPO's is not, because of its stop-gradient.
    fn methods() -> impl Strategy<Value = Surrogate> {
        prop_oneof![
            Just(Surrogate::Ppo(PpoClip::default())),
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

    fn total(terms: &[TokenLoss<f64>]) -> f64 {
        terms.iter().map(|term| term.loss).sum()
    }

    proptest! {
        #[test]
        fn partials_match_finite_differences(method in methods(), tokens in tokens()) {
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.3).collect();
            let at = |now: &[f64]| method.token_losses(now, &old, &advantages, &mask);
            let here = at(&now);
            let h = 1e-6;
            for t in 0..now.len() {
                let (mut up, mut down) = (now.clone(), now.clone());
                up[t] += h;
                down[t] -= h;
                let (up, down) = (at(&up), at(&down));
                // The loss is not differentiable where a clip begins.
                prop_assume!(up.iter().zip(&down).all(|(u, d)| u.clipped == d.clipped));
                let slope = (total(&up) - total(&down)) / (2.0 * h);
                prop_assert!((slope - here[t].d_logprob).abs() < 1e-6 * (1.0 + slope.abs()), "{method:?} token {t}: {slope} {here:?}");
            }
        }

        #[test]
        fn cispo_treats_its_weight_as_a_constant(tokens in tokens()) {
            let cispo = Cispo::default();
            for (old, change, advantage, _) in tokens {
                let now = old + change;
                let term = Surrogate::Cispo(cispo).token_losses(&[now], &[old], &[advantage], &[])[0];
                let weight = (now - old).exp().clamp(cispo.low, cispo.high);
                let at = |now: f64| -weight * advantage * now;
                let slope = (at(now + 1e-6) - at(now - 1e-6)) / 2e-6;
                prop_assert!((term.loss - at(now)).abs() < 1e-9);
                prop_assert!((term.d_logprob - slope).abs() < 1e-6 * (1.0 + slope.abs()), "{term:?}");
            }
        }

        #[test]
        fn masked_padding_changes_nothing(method in methods(), tokens in tokens(), padding in prop::collection::vec(-9.0..0.0f64, 0..4)) {
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.3).collect();
            let bare = method.token_losses(&now, &old, &advantages, &mask);
            let longer = |values: &[f64]| -> Vec<f64> { values.iter().chain(&padding).copied().collect() };
            let mut padded = mask.clone();
            padded.resize(mask.len() + padding.len(), false);
            let whole = method.token_losses(&longer(&now), &longer(&old), &longer(&advantages), &padded);
            prop_assert_eq!(&bare[..], &whole[..bare.len()]);
            prop_assert!(whole[bare.len()..].iter().all(|term| term.loss == 0.0 && term.d_logprob == 0.0));
        }

        #[test]
        fn every_method_equals_reinforce_at_ratio_one(old in -5.0..0.0f64, advantage in -2.0..2.0f64) {
            let methods = [
                Surrogate::default(), Surrogate::Gspo(Gspo::default()), Surrogate::Cispo(Cispo::default()),
                Surrogate::Sapo(Sapo::default()), Surrogate::Dppo(Dppo::default()), Surrogate::Reinforce,
            ];
            for method in methods {
                let terms = method.token_losses(&[old], &[old], &[advantage], &[]);
                prop_assert!((terms[0].d_logprob + advantage).abs() < 1e-9, "{method:?}: {terms:?}");
            }
        }

        #[test]
        fn masked_tokens_have_no_influence(method in methods(), tokens in tokens(), other in -3.0..0.0f64) {
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.3).collect();
            let here = method.token_losses(&now, &old, &advantages, &mask);
            let changed: Vec<f64> = now.iter().zip(&mask).map(|(&lp, &m)| if m { lp } else { other }).collect();
            prop_assert_eq!(&here, &method.token_losses(&changed, &old, &advantages, &mask));
            for (term, trains) in here.iter().zip(&mask) {
                prop_assert!(*trains || (term.loss == 0.0 && term.d_logprob == 0.0));
            }
        }
    }
}
