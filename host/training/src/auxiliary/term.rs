//! One auxiliary loss: its sequences, what the base model says about them, and the loss of their scores.

use clawhost_engine::{LossGradients, SequenceScores};
use clawhost_journal::{PairReply, PreferencePair};
use clawhost_plugins::{PairGradient, ScoredPair, ScoredReply};

use crate::forced_tokens;
use crate::generated_replies::GeneratedReply;
use crate::loss::{PairLogprobs, Preference, TopKDistillation, trains};
use crate::packing::ModelInput;
use clawhost_config::{DistillationDivergence, PairLoss, PairOptions};

/// What computes the loss of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PairObjective {
    /// A native formula.
    Native(Preference),
    /// The pair-loss component of the step.
    Component,
}

impl PairObjective {
    /// The objective of `[training.pairs]`; none if pairs are not trained on.
    pub(crate) fn from_options(options: &PairOptions) -> Option<Self> {
        match options.loss {
            PairLoss::Component => Some(Self::Component),
            _ => Preference::from_options(options).map(Self::Native),
        }
    }

    /// Whether the loss compares with a rejected reply.
    pub(crate) fn compares(self) -> bool {
        match self {
            Self::Native(preference) => preference.compares(),
            Self::Component => true,
        }
    }
}

/// An auxiliary loss.
#[derive(Debug)]
pub(crate) struct AuxiliaryTerm {
    inputs: Vec<ModelInput>,
    loss: AuxiliaryLoss,
}

#[derive(Debug, Clone)]
enum AuxiliaryLoss {
    /// Preference between two replies, or likelihood of one.
    Pair {
        objective: PairObjective,
        /// Masks of the trained tokens; empty = all.
        masks: Vec<Vec<bool>>,
        /// Log-probs of the replies' tokens under the base model.
        reference: Vec<Vec<f32>>,
    },
    /// KL(base || policy) over the base model's most likely tokens.
    Divergence {
        top_k: usize,
        /// The base model's log-probs of them, `[tokens, K]`.
        reference: Vec<f32>,
    },
}

/// What a term reports about one evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TermValue {
    Pair {
        /// Loss before its weight.
        loss: f64,
        /// Margin over the base model, in nats; 0 without a rejected reply.
        margin: f64,
    },
    /// Mean divergence per token.
    Divergence { kl: f64 },
}

/// Loss and derivatives of one evaluation.
pub(crate) struct TermOutput {
    pub(crate) value: TermValue,
    /// One per sequence.
    pub(crate) partials: Vec<LossGradients>,
}

impl TermOutput {
    /// Removes all derivatives.
    pub(crate) fn clear(&mut self) {
        for partial in &mut self.partials {
            partial.d_logprob.fill(0.0);
            partial.d_candidates.fill(0.0);
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        let value = match self.value {
            TermValue::Pair { loss, .. } => loss,
            TermValue::Divergence { kl } => kl,
        };
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        value.is_finite()
            && self
                .partials
                .iter()
                .all(|partial| finite(&partial.d_logprob) && finite(&partial.d_candidates))
    }
}

impl AuxiliaryTerm {
    /// The loss of a pair. Both replies follow the prompt of the rejected one.
    pub(crate) fn pair(pair: &PreferencePair, objective: PairObjective) -> Self {
        let rejected = pair.rejected.iter().filter(|_| objective.compares());
        let replies: Vec<&PairReply> = std::iter::once(&pair.chosen).chain(rejected).collect();
        let input = |reply: &&PairReply| {
            let tokens = [pair.prompt_ids.as_slice(), &reply.token_ids].concat();
            ModelInput::from_tokens(tokens, pair.prompt_ids.len())
        };
        let mask = |reply: &&PairReply| {
            let mut mask = Vec::new();
            forced_tokens::mask_out(&mut mask, reply.token_ids.len(), &reply.forced);
            mask
        };
        Self {
            inputs: replies.iter().map(input).collect(),
            loss: AuxiliaryLoss::Pair {
                objective,
                masks: replies.iter().map(mask).collect(),
                reference: Vec::new(),
            },
        }
    }

    /// The divergence from the base model on one of its replies.
    pub(crate) fn divergence(reply: &GeneratedReply, top_k: usize) -> Self {
        let tokens = [reply.prompt_ids.as_slice(), &reply.token_ids].concat();
        Self {
            inputs: vec![ModelInput::from_tokens(tokens, reply.prompt_ids.len())],
            loss: AuxiliaryLoss::Divergence {
                top_k,
                reference: Vec::new(),
            },
        }
    }

    /// The same divergence with another prompt for the policy: the base model's scores stay those after its own prompt.
    pub(crate) fn after(&self, prompt_ids: &[u32]) -> Self {
        let input = |input: &ModelInput| input.with_prompt(prompt_ids);
        Self {
            inputs: self.inputs.iter().map(input).collect(),
            loss: self.loss.clone(),
        }
    }

    /// Tokens of all its sequences.
    pub(crate) fn tokens(&self) -> usize {
        let lengths = self.inputs.iter().map(|input| input.tokens.len());
        lengths.sum()
    }

    pub(crate) fn inputs(&self) -> &[ModelInput] {
        &self.inputs
    }

    /// How many of the base model's most likely tokens [`AuxiliaryTerm::set_reference`] needs.
    pub(crate) fn reference_top_k(&self) -> Option<usize> {
        match self.loss {
            AuxiliaryLoss::Pair { .. } => None,
            AuxiliaryLoss::Divergence { top_k, .. } => Some(top_k),
        }
    }

    /// Keeps the base model's scores of the sequences.
    pub(crate) fn set_reference(&mut self, scored: Vec<SequenceScores>) {
        match &mut self.loss {
            AuxiliaryLoss::Pair { reference, .. } => {
                *reference = scored.into_iter().map(|scored| scored.logprobs).collect();
            }
            AuxiliaryLoss::Divergence { top_k, reference } => {
                for (input, scored) in self.inputs.iter_mut().zip(scored) {
                    input.set_candidates(scored.candidates, *top_k);
                    *reference = scored.candidate_logprobs;
                }
            }
        }
    }

    /// What a pair-loss component is shown of the pair; none if the loss is native.
    pub(crate) fn component_input(&self, scored: &[SequenceScores]) -> Option<ScoredPair> {
        let AuxiliaryLoss::Pair {
            objective: PairObjective::Component,
            masks,
            reference,
        } = &self.loss
        else {
            return None;
        };
        let reply = |at: usize| {
            let (scored, input): (&SequenceScores, &ModelInput) = (&scored[at], &self.inputs[at]);
            let tokens = scored.logprobs.len();
            ScoredReply {
                tokens: input.tokens[input.tokens.len() - tokens..].to_vec(),
                mask: (0..tokens)
                    .map(|token| u8::from(trains(&masks[at], token)))
                    .collect(),
                logprob: scored.logprobs.clone(),
                ref_logprob: reference[at].clone(),
            }
        };
        Some(ScoredPair {
            chosen: reply(0),
            rejected: reply(1),
        })
    }

    /// The loss of a pair that a component computed under these scores, times `weight` in the derivatives.
    pub(crate) fn of_component(
        &self,
        scored: &[SequenceScores],
        gradient: PairGradient,
        weight: f64,
    ) -> TermOutput {
        let AuxiliaryLoss::Pair {
            masks, reference, ..
        } = &self.loss
        else {
            unreachable!("a component computes the losses of pairs only")
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the device computes in f32, as the parameters are"
        )]
        let partials = [gradient.d_chosen, gradient.d_rejected].map(|partials| LossGradients {
            d_logprob: partials
                .into_iter()
                .map(|partial| (f64::from(partial) * weight) as f32)
                .collect(),
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
        });
        TermOutput {
            value: TermValue::Pair {
                loss: gradient.loss,
                margin: pair_logprobs(scored, masks, reference).margin(),
            },
            partials: partials.into(),
        }
    }

    /// The native loss under these scores, times `weight` in the derivatives.
    pub(crate) fn evaluate(&self, scored: &[SequenceScores], weight: f64) -> TermOutput {
        match &self.loss {
            AuxiliaryLoss::Pair {
                objective: PairObjective::Native(preference),
                masks,
                reference,
            } => evaluate_pair(*preference, scored, masks, reference, weight),
            AuxiliaryLoss::Pair { .. } => unreachable!("a component computes this loss"),
            AuxiliaryLoss::Divergence { top_k, reference } => {
                evaluate_divergence(&scored[0], reference, *top_k, weight)
            }
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "the device computes in f32, as the parameters are"
)]
fn evaluate_pair(
    preference: Preference,
    scored: &[SequenceScores],
    masks: &[Vec<bool>],
    reference: &[Vec<f32>],
    weight: f64,
) -> TermOutput {
    let pair = pair_logprobs(scored, masks, reference);
    let output = preference.evaluate(&pair);
    let slopes = [output.d_chosen, output.d_rejected];
    let partials = scored.iter().zip(masks).zip(slopes);
    let partials = partials.map(|((scored, mask), slope)| {
        let slope = (slope * weight) as f32;
        let of_token = |token| if trains(mask, token) { slope } else { 0.0 };
        LossGradients {
            d_logprob: (0..scored.logprobs.len()).map(of_token).collect(),
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
        }
    });
    TermOutput {
        value: TermValue::Pair {
            loss: output.loss,
            margin: if scored.len() > 1 { pair.margin() } else { 0.0 },
        },
        partials: partials.collect(),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the device computes in f32, and token counts are far below 2^53"
)]
fn evaluate_divergence(
    scored: &SequenceScores,
    reference: &[f32],
    top_k: usize,
    weight: f64,
) -> TermOutput {
    let divergence = TopKDistillation {
        direction: DistillationDivergence::Forward,
        tail: true,
    };
    let tokens = scored.logprobs.len();
    let scale = (weight / tokens.max(1) as f64) as f32;
    let mut d_candidates = vec![0.0; scored.candidate_logprobs.len()];
    let mut sum = 0.0;
    let rows = scored
        .candidate_logprobs
        .chunks(top_k)
        .zip(reference.chunks(top_k))
        .zip(d_candidates.chunks_mut(top_k));
    for ((policy, base), partials) in rows {
        sum += f64::from(divergence.token(policy, base, partials));
        partials.iter_mut().for_each(|partial| *partial *= scale);
    }
    TermOutput {
        value: TermValue::Divergence {
            kl: sum / tokens.max(1) as f64,
        },
        partials: vec![LossGradients {
            d_logprob: vec![0.0; tokens],
            d_entropy: Vec::new(),
            d_candidates,
        }],
    }
}

/// The log-probs of the replies of a pair; those of a rejected reply that is not there are 0.
fn pair_logprobs(
    scored: &[SequenceScores],
    masks: &[Vec<bool>],
    reference: &[Vec<f32>],
) -> PairLogprobs {
    let (chosen, chosen_tokens) = sum_trained(&scored[0].logprobs, &masks[0]);
    let mut pair = PairLogprobs {
        chosen,
        chosen_tokens,
        reference_chosen: sum_trained(&reference[0], &masks[0]).0,
        ..PairLogprobs::default()
    };
    if let (Some(rejected), Some(mask)) = (scored.get(1), masks.get(1)) {
        pair.rejected = sum_trained(&rejected.logprobs, mask).0;
        pair.reference_rejected = sum_trained(&reference[1], mask).0;
    }
    pair
}

/// The sum of the trained tokens' log-probs, and their number.
fn sum_trained(logprobs: &[f32], mask: &[bool]) -> (f64, usize) {
    let trained = forced_tokens::select_trained(logprobs, mask);
    (trained.iter().map(|lp| f64::from(*lp)).sum(), trained.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawhost_journal::{PairTurns, TurnId};

    fn scores(logprobs: &[f32], candidates: &[f32]) -> SequenceScores {
        SequenceScores {
            logprobs: logprobs.to_vec(),
            entropies: vec![0.0; logprobs.len()],
            candidates: (0..candidates.len() as u32).collect(),
            candidate_logprobs: candidates.to_vec(),
        }
    }

    #[test]
    fn forced_tokens_of_a_pair_have_no_gradient_and_do_not_count() {
        let pair = PreferencePair {
            turns: PairTurns {
                rejected: Some(TurnId(1)),
                also_rejected: Vec::new(),
                accepted: TurnId(2),
            },
            prompt_ids: vec![1],
            chosen: PairReply {
                token_ids: vec![2, 3],
                forced: vec![1],
            },
            rejected: Some(PairReply {
                token_ids: vec![4],
                forced: Vec::new(),
            }),
        };
        let objective = PairObjective::Native(Preference::Dpo {
            beta: 1.0,
            sft: 1.0,
        });
        let mut term = AuxiliaryTerm::pair(&pair, objective);
        assert_eq!(term.inputs()[0].tokens, [1, 2, 3]);
        assert_eq!(term.inputs()[1].tokens, [1, 4]);
        let policy = [scores(&[-1.0, -9.0], &[]), scores(&[-2.0], &[])];
        term.set_reference(policy.to_vec());
        let output = term.evaluate(&policy, 0.5);
        // Equal to the reference: the margin is 0, its slope -1/2, and the mean NLL is that of one token.
        let TermValue::Pair { loss, margin } = output.value else {
            panic!("a pair reports a pair");
        };
        assert_eq!(margin, 0.0);
        assert!((loss - (2.0f64.ln() + 1.0)).abs() < 1e-9, "{loss}");
        assert_eq!(output.partials[0].d_logprob, [-0.75, 0.0]);
        assert_eq!(output.partials[1].d_logprob, [0.25]);
        // SFT reads no rejected reply.
        let sft = PairObjective::Native(Preference::Sft);
        assert_eq!(AuxiliaryTerm::pair(&pair, sft).inputs().len(), 1);

        // A component is shown the replies without their prompt, and the forced token masked.
        assert!(term.component_input(&policy).is_none());
        let mut term = AuxiliaryTerm::pair(&pair, PairObjective::Component);
        term.set_reference(policy.to_vec());
        let moved = [scores(&[-0.5, -9.0], &[]), scores(&[-3.0], &[])];
        let shown = term.component_input(&moved).unwrap();
        let reply =
            |tokens: &[u32], mask: &[u8], logprob: &[f32], ref_logprob: &[f32]| ScoredReply {
                tokens: tokens.to_vec(),
                mask: mask.to_vec(),
                logprob: logprob.to_vec(),
                ref_logprob: ref_logprob.to_vec(),
            };
        assert_eq!(
            shown.chosen,
            reply(&[2, 3], &[1, 0], &[-0.5, -9.0], &[-1.0, -9.0])
        );
        assert_eq!(shown.rejected, reply(&[4], &[1], &[-3.0], &[-2.0]));
        let gradient = PairGradient {
            loss: 2.0,
            d_chosen: vec![-0.5, 0.0],
            d_rejected: vec![0.25],
        };
        let output = term.of_component(&moved, gradient, 0.5);
        assert_eq!(
            output.value,
            TermValue::Pair {
                loss: 2.0,
                margin: 1.5
            }
        );
        assert_eq!(output.partials[0].d_logprob, [-0.25, 0.0]);
        assert_eq!(output.partials[1].d_logprob, [0.125]);
    }

    #[test]
    fn rehearsal_pulls_the_policy_towards_the_base_model() {
        let reply = GeneratedReply {
            key: String::new(),
            prompt_ids: vec![1],
            token_ids: vec![2],
        };
        let mut term = AuxiliaryTerm::divergence(&reply, 2);
        let base = scores(&[-0.5], &[0.6f32.ln(), 0.3f32.ln()]);
        term.set_reference(vec![base.clone()]);
        let same = term.evaluate(std::slice::from_ref(&base), 1.0);
        assert!(matches!(same.value, TermValue::Divergence { kl } if kl.abs() < 1e-6));
        let moved = scores(&[-0.5], &[0.3f32.ln(), 0.6f32.ln()]);
        let output = term.evaluate(&[moved], 2.0);
        let expected = 0.6 * 2.0f64.ln() - 0.3 * 2.0f64.ln();
        assert!(
            matches!(output.value, TermValue::Divergence { kl } if (kl - expected).abs() < 1e-6)
        );
        let d = &output.partials[0].d_candidates;
        assert!(d[0] < 0.0 && d[1] > 0.0, "{d:?}");
        assert!(output.is_finite());
    }
}
