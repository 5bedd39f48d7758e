//! Preference losses on a pair of replies to one prompt, and the negative log-likelihood of an accepted reply.
//!
//! With lp the policy's and ref the base model's log-prob of a whole reply, c the accepted and r the rejected one:
//! margin m = (lp_c − ref_c) − (lp_r − ref_r), DPO = −log sigmoid(beta · m) (Rafailov et al. 2023, "Direct Preference
//! Optimization", eq. 7), IPO = (m − 1 / (2 · beta))² (Azar et al. 2023, "A General Theoretical Paradigm to Understand
//! Learning from Human Preferences", eq. 17). Both add `sft` times the mean negative log-likelihood of the tokens of c.
//!
//! The replies may have been sampled under another prompt and by another version: none of these losses has a ratio to the
//! sampling distribution.

use clawhost_config::{PairLoss, PairOptions};

/// A loss on pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Preference {
    /// Mean negative log-likelihood of the accepted reply.
    Sft,
    /// DPO.
    Dpo {
        /// Strength of the reference.
        beta: f64,
        /// Weight of the accepted reply's mean negative log-likelihood.
        sft: f64,
    },
    /// IPO.
    Ipo {
        /// Strength of the reference.
        beta: f64,
        /// Weight of the accepted reply's mean negative log-likelihood.
        sft: f64,
    },
}

/// The log-probs of a pair, in nats, each the sum over the trained tokens of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PairLogprobs {
    /// Accepted reply under the policy.
    pub chosen: f64,
    /// Trained tokens of the accepted reply.
    pub chosen_tokens: usize,
    /// Accepted reply under the base model.
    pub reference_chosen: f64,
    /// Rejected reply under the policy.
    pub rejected: f64,
    /// Rejected reply under the base model.
    pub reference_rejected: f64,
}

/// Loss of a pair with its derivatives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairLossOutput {
    /// The loss, to be minimized.
    pub loss: f64,
    /// dL/dlogprob of each trained token of the accepted reply.
    pub d_chosen: f64,
    /// dL/dlogprob of each trained token of the rejected reply.
    pub d_rejected: f64,
}

impl PairLogprobs {
    /// How much more the policy prefers the accepted reply than the base model does, in nats.
    pub fn margin(&self) -> f64 {
        (self.chosen - self.reference_chosen) - (self.rejected - self.reference_rejected)
    }
}

impl Preference {
    /// The native loss of `[training.pairs]`; none if pairs are not trained on, or by a component.
    pub fn from_options(options: &PairOptions) -> Option<Self> {
        let (beta, sft) = (options.beta, options.sft_coef);
        match options.loss {
            PairLoss::None | PairLoss::Component => None,
            PairLoss::Sft => Some(Self::Sft),
            PairLoss::Dpo => Some(Self::Dpo { beta, sft }),
            PairLoss::Ipo => Some(Self::Ipo { beta, sft }),
        }
    }

    /// Whether the loss compares with a rejected reply.
    pub fn compares(self) -> bool {
        self != Self::Sft
    }

    /// The loss of a pair. Finite for all finite inputs: a pair that the policy already separates has a gradient near 0.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub fn evaluate(self, pair: &PairLogprobs) -> PairLossOutput {
        let (loss, slope, sft) = match self {
            Self::Sft => (0.0, 0.0, 1.0),
            Self::Dpo { beta, sft } => {
                let scaled = beta * pair.margin();
                (softplus(-scaled), -beta * sigmoid(-scaled), sft)
            }
            Self::Ipo { beta, sft } => {
                let distance = pair.margin() - 1.0 / (2.0 * beta);
                (distance * distance, 2.0 * distance, sft)
            }
        };
        let per_token = sft / pair.chosen_tokens.max(1) as f64;
        PairLossOutput {
            loss: loss - per_token * pair.chosen,
            d_chosen: slope - per_token,
            d_rejected: -slope,
        }
    }
}

/// log(1 + exp(x)) without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// 1 / (1 + exp(−x)) without overflow.
fn sigmoid(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    if x >= 0.0 {
        1.0 / (1.0 + small)
    } else {
        small / (1.0 + small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAIR: PairLogprobs = PairLogprobs {
        chosen: -12.0,
        chosen_tokens: 4,
        reference_chosen: -15.0,
        rejected: -22.0,
        reference_rejected: -20.0,
    };

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn losses_match_numbers_computed_by_hand() {
        assert_eq!(PAIR.margin(), 5.0);
        // -log sigmoid(0.5) = log(1 + exp(-0.5)); the mean NLL is 3.
        let dpo = Preference::Dpo {
            beta: 0.1,
            sft: 0.2,
        }
        .evaluate(&PAIR);
        assert!(close(dpo.loss, 0.474_076_984_180_106_7 + 0.6), "{dpo:?}");
        // -0.1 sigmoid(-0.5) = -0.0377540668798145; 0.2 / 4 = 0.05.
        assert!(close(dpo.d_chosen, -0.037_754_066_879_814_5 - 0.05));
        assert!(close(dpo.d_rejected, 0.037_754_066_879_814_5));

        let ipo = Preference::Ipo {
            beta: 0.25,
            sft: 0.0,
        }
        .evaluate(&PAIR);
        assert!(close(ipo.loss, 9.0) && close(ipo.d_chosen, 6.0) && close(ipo.d_rejected, -6.0));

        let sft = Preference::Sft.evaluate(&PAIR);
        assert!(close(sft.loss, 3.0) && close(sft.d_chosen, -0.25) && sft.d_rejected == 0.0);
    }

    #[test]
    fn a_pair_far_from_the_reference_has_a_finite_loss() {
        let dpo = Preference::Dpo {
            beta: 0.1,
            sft: 0.0,
        };
        let at = |chosen: f64| dpo.evaluate(&PairLogprobs { chosen, ..PAIR });
        let separated = at(1e6);
        assert_eq!((separated.loss, separated.d_chosen), (0.0, 0.0));
        let inverted = at(-1e6);
        assert!(inverted.loss.is_finite() && close(inverted.d_chosen, -0.1));
        assert!(close(inverted.d_rejected, 0.1));
    }

    fn preferences() -> impl Strategy<Value = Preference> {
        (0.01..1.0f64, 0.0..1.0f64, 0usize..3).prop_map(|(beta, sft, kind)| match kind {
            0 => Preference::Sft,
            1 => Preference::Dpo { beta, sft },
            _ => Preference::Ipo { beta, sft },
        })
    }

    proptest! {
        #[test]
        fn partials_match_finite_differences(
            preference in preferences(), chosen in -40.0..0.0f64, rejected in -40.0..0.0f64,
            reference_chosen in -40.0..0.0f64, reference_rejected in -40.0..0.0f64, chosen_tokens in 1usize..9,
        ) {
            let pair = PairLogprobs { chosen, chosen_tokens, reference_chosen, rejected, reference_rejected };
            let output = preference.evaluate(&pair);
            let h = 1e-5;
            let slope = |change: &dyn Fn(f64) -> PairLogprobs| {
                (preference.evaluate(&change(h)).loss - preference.evaluate(&change(-h)).loss) / (2.0 * h)
            };
            let d_chosen = slope(&|h| PairLogprobs { chosen: pair.chosen + h, ..pair });
            let d_rejected = slope(&|h| PairLogprobs { rejected: pair.rejected + h, ..pair });
            prop_assert!((d_chosen - output.d_chosen).abs() < 1e-5 * (1.0 + d_chosen.abs()), "{d_chosen} {output:?}");
            prop_assert!((d_rejected - output.d_rejected).abs() < 1e-5 * (1.0 + d_rejected.abs()), "{d_rejected} {output:?}");
        }
    }
}
