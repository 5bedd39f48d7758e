//! The policy-optimization objective of a sequence: surrogate × importance weight + KL penalty − entropy bonus.
//!
//! Takes log-probs and entropies and returns the loss with its partial derivatives, which the model's backward pass
//! propagates. Knows neither model nor optimizer, and checks the lengths of its inputs.

use clawhost_config::KlEstimator;

use crate::float::Float;
use crate::loss::kl::KlTerm;
use crate::loss::mask::trains;
use crate::loss::surrogate::Surrogate;

/// KL penalty to the reference (the base model).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlPenalty {
    /// KL estimator.
    pub estimator: KlEstimator,
    /// Factor on the estimate; 0 turns the penalty off.
    pub coefficient: f64,
    /// Multiply by the ratio to the old policy, which makes the derivative unbiased off-policy.
    pub weighted: bool,
}

/// The policy-optimization objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Policy-gradient surrogate.
    pub surrogate: Surrogate,
    /// KL penalty to the reference.
    pub penalty: KlPenalty,
    /// Factor on the entropy that is subtracted from the loss; 0 turns the bonus off.
    pub entropy_bonus: f64,
}

/// Inputs of the loss of one sequence; each slice has one entry per token of the reply.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInputs<'a, R> {
    /// Current log-probs (differentiable).
    pub logprobs: &'a [R],
    /// Current entropies (differentiable); may be empty if the entropy bonus is 0.
    pub entropies: &'a [R],
    /// Log-probs under the old policy, the denominator of the ratio.
    pub old: &'a [R],
    /// Log-probs under the reference; may be empty if the KL coefficient is 0.
    pub reference: &'a [R],
    /// Importance weights, constants; empty = all one.
    pub weights: &'a [R],
    /// Advantages.
    pub advantages: &'a [R],
    /// Which tokens train; empty = all.
    pub mask: &'a [bool],
}

/// Loss of one sequence, its derivatives and statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceLoss<R> {
    /// This sequence's part of the step's loss.
    pub loss: f64,
    /// d loss / d log-prob.
    pub d_logprob: Vec<R>,
    /// d loss / d entropy; empty if the entropy bonus is 0.
    pub d_entropy: Vec<R>,
    /// d loss / d log-prob of the top-k candidates; empty without a top-k loss.
    pub d_candidates: Vec<R>,
    /// Number of trained tokens.
    pub tokens: usize,
    /// Number of clipped tokens.
    pub clipped: usize,
    /// Sum of the penalty's KL estimates over trained tokens, before its coefficient (0 without a reference, and from a
    /// component).
    pub kl_penalty: f64,
    /// Sum of the clamped k3 estimates to the old policy over trained tokens.
    pub kl_old: f64,
    /// Sum of the entropies over trained tokens (0 without entropies).
    pub entropy: f64,
}

/// Inputs whose lengths do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the loss got {got} values of `{what}` for a reply of {expected} tokens")]
pub struct LossError {
    /// Name of the input.
    pub what: &'static str,
    /// Tokens of the reply.
    pub expected: usize,
    /// Length of the input.
    pub got: usize,
}

impl Objective {
    /// Loss and partial derivatives of one sequence. `coefficient` is the sequence's entry of
    /// [`crate::loss::SequenceCoefficients::coefficients`] over the whole step.
    ///
    /// # Errors
    /// The lengths of the inputs do not match.
    pub fn evaluate<R: Float>(
        &self,
        inputs: &SequenceInputs<'_, R>,
        coefficient: f64,
    ) -> Result<SequenceLoss<R>, LossError> {
        self.check(inputs)?;
        let scale = R::from_f64(coefficient);
        let length = inputs.logprobs.len();
        let mut out = SequenceLoss {
            loss: 0.0,
            d_logprob: Vec::with_capacity(length),
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
            tokens: 0,
            clipped: 0,
            kl_penalty: 0.0,
            kl_old: 0.0,
            entropy: 0.0,
        };
        let bonus = R::from_f64(self.entropy_bonus);
        let penalty = R::from_f64(self.penalty.coefficient);
        let terms = self.surrogate.token_losses(
            inputs.logprobs,
            inputs.old,
            inputs.advantages,
            inputs.mask,
        );
        for (t, ((&logprob, &old), term)) in inputs
            .logprobs
            .iter()
            .zip(inputs.old)
            .zip(terms)
            .enumerate()
        {
            let trains = trains(inputs.mask, t);
            if self.entropy_bonus != 0.0 {
                out.d_entropy
                    .push(if trains { -(bonus * scale) } else { R::ZERO });
            }
            if !trains {
                out.d_logprob.push(R::ZERO);
                continue;
            }
            let weight = match inputs.weights {
                [] => R::ONE,
                weights => weights[t],
            };
            let mut loss = term.loss * weight;
            let mut d_logprob = term.d_logprob * weight;
            if let Some(&reference) = inputs.reference.get(t) {
                let plain = self.penalty.estimator.token(logprob, reference);
                out.kl_penalty += plain.value.to_f64();
                if self.penalty.coefficient != 0.0 {
                    let estimate = if self.penalty.weighted {
                        self.penalty.estimator.weighted(logprob, reference, old)
                    } else {
                        plain
                    };
                    loss += penalty * estimate.value;
                    d_logprob += penalty * estimate.d_logprob;
                }
            }
            if let Some(&entropy) = inputs.entropies.get(t) {
                out.entropy += entropy.to_f64();
                loss = loss - bonus * entropy;
            }
            out.kl_old += KlEstimator::K3Clamped.token(old, logprob).value.to_f64();
            out.tokens += 1;
            out.clipped += usize::from(term.clipped);
            out.loss += (loss * scale).to_f64();
            out.d_logprob.push(d_logprob * scale);
        }
        Ok(out)
    }

    fn check<R: Float>(&self, inputs: &SequenceInputs<'_, R>) -> Result<(), LossError> {
        let expected = inputs.logprobs.len();
        let exact = |what, got| {
            if got == expected {
                Ok(())
            } else {
                Err(LossError {
                    what,
                    expected,
                    got,
                })
            }
        };
        let optional = |what, got, needed: bool| {
            if got == 0 && !needed {
                Ok(())
            } else {
                exact(what, got)
            }
        };
        exact("old", inputs.old.len())?;
        exact("advantages", inputs.advantages.len())?;
        optional(
            "entropies",
            inputs.entropies.len(),
            self.entropy_bonus != 0.0,
        )?;
        optional(
            "reference",
            inputs.reference.len(),
            self.penalty.coefficient != 0.0,
        )?;
        optional("weights", inputs.weights.len(), false)?;
        optional("mask", inputs.mask.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn objective(penalty: f64, entropy_bonus: f64) -> Objective {
        Objective {
            surrogate: Surrogate::default(),
            penalty: KlPenalty {
                estimator: KlEstimator::K3,
                coefficient: penalty,
                weighted: false,
            },
            entropy_bonus,
        }
    }

    proptest! {
        #[test]
        fn partials_match_finite_differences(
            tokens in prop::collection::vec((-5.0..-0.1f64, -0.15..0.15f64, -5.0..-0.1f64, 0.1..3.0f64, -2.0..2.0f64, 0.1..2.0f64, prop::bool::ANY), 1..6),
        ) {
            let objective = objective(0.05, 0.01);
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let reference: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let entropies: Vec<f64> = tokens.iter().map(|t| t.3).collect();
            let advantages: Vec<f64> = tokens.iter().map(|t| t.4).collect();
            let weights: Vec<f64> = tokens.iter().map(|t| t.5).collect();
            let mask: Vec<bool> = tokens.iter().map(|t| t.6).collect();
            let loss = |now: &[f64], entropies: &[f64]| {
                objective.evaluate(&SequenceInputs { logprobs: now, entropies, old: &old, reference: &reference,
                    weights: &weights, advantages: &advantages, mask: &mask }, 0.25).unwrap()
            };
            let here = loss(&now, &entropies);
            let h = 1e-6;
            for t in 0..now.len() {
                let (mut up, mut down) = (now.clone(), now.clone());
                up[t] += h;
                down[t] -= h;
                let slope = (loss(&up, &entropies).loss - loss(&down, &entropies).loss) / (2.0 * h);
                prop_assert!((slope - here.d_logprob[t]).abs() < 1e-6, "token {t}: {slope} {}", here.d_logprob[t]);
                let (mut up, mut down) = (entropies.clone(), entropies.clone());
                up[t] += h;
                down[t] -= h;
                let slope = (loss(&now, &up).loss - loss(&now, &down).loss) / (2.0 * h);
                prop_assert!((slope - here.d_entropy[t]).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_length_mismatch_names_the_input() {
        let error = objective(0.1, 0.0)
            .evaluate(
                &SequenceInputs {
                    logprobs: &[-1.0f32, -2.0],
                    entropies: &[],
                    old: &[-1.0, -2.0],
                    reference: &[],
                    weights: &[],
                    advantages: &[1.0, 1.0],
                    mask: &[],
                },
                1.0,
            )
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the loss got 0 values of `reference` for a reply of 2 tokens"
        );
    }

    #[test]
    fn a_masked_token_has_a_zero_partial() {
        let loss = objective(0.0, 0.5)
            .evaluate(
                &SequenceInputs {
                    logprobs: &[-1.0f32, -2.0],
                    entropies: &[1.0, 1.0],
                    old: &[-1.0, -2.0],
                    reference: &[],
                    weights: &[],
                    advantages: &[1.0, 1.0],
                    mask: &[true, false],
                },
                1.0,
            )
            .unwrap();
        assert_eq!(
            (loss.tokens, loss.d_logprob[1], loss.d_entropy[1]),
            (1, 0.0, 0.0)
        );
        assert!(loss.d_logprob[0] < 0.0 && loss.d_entropy[0] < 0.0);
    }
}
