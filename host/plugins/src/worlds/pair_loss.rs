//! `pair-loss-plugin`: a loss on preference pairs and its partial derivatives.
//!
//! Training back-propagates exactly the partials returned here, so this module rejects partials that are not finite, not
//! one per token, or not zero at masked tokens.

use serde::{Deserialize, Serialize};

use crate::bindings::pair_loss as guest;
use crate::call::CallContext;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Metric};
use crate::worlds::loss::check_partials;
use clawhost_config::VerdictRules;

/// A reply after the prompt of its pair. The lists are of one length.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoredReply {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// 1 where the token is trained, 0 elsewhere.
    pub mask: Vec<u8>,
    /// Logprobs under the policy, in nats.
    pub logprob: Vec<f32>,
    /// Logprobs under the base model, in nats.
    pub ref_logprob: Vec<f32>,
}

/// Two replies to one prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoredPair {
    /// The accepted reply.
    pub chosen: ScoredReply,
    /// The rejected reply.
    pub rejected: ScoredReply,
}

/// A micro-batch of pairs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairBatch {
    /// The pairs.
    pub pairs: Vec<ScoredPair>,
    /// The step's number. Default 0.
    #[serde(default)]
    pub step: u64,
}

/// Loss of one pair with its partial derivatives, validated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairGradient {
    /// The loss; finite.
    pub loss: f64,
    /// Partials with respect to the logprobs of the accepted reply, one per token.
    pub d_chosen: Vec<f32>,
    /// Partials with respect to the logprobs of the rejected reply, one per token.
    pub d_rejected: Vec<f32>,
}

/// Losses of a micro-batch of pairs, validated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairEvaluation {
    /// One per pair.
    pub gradients: Vec<PairGradient>,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Evaluates the losses of pairs and their partials, in a fresh instance. Dropping the future ends the call.
    pub async fn evaluate_pairs(
        &self,
        call: CallContext,
        batch: PairBatch,
    ) -> CallResult<PairEvaluation> {
        let batch = to_guest(batch);
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            PairLoss,
            |guest, store| guest.call_evaluate(&mut *store, &batch),
            |answer| check(answer, &batch, &rules)
        )
    }
}

fn to_guest(batch: PairBatch) -> guest::Batch {
    let reply = |reply: ScoredReply| guest::Reply {
        tokens: reply.tokens,
        mask: reply.mask,
        logprob: reply.logprob,
        ref_logprob: reply.ref_logprob,
    };
    let pairs = batch.pairs.into_iter().map(|pair| guest::Pair {
        chosen: reply(pair.chosen),
        rejected: reply(pair.rejected),
    });
    guest::Batch {
        pairs: pairs.collect(),
        step: batch.step,
    }
}

fn check(
    answer: guest::Evaluation,
    batch: &guest::Batch,
    rules: &VerdictRules,
) -> Result<PairEvaluation, String> {
    let (found, expected) = (answer.gradients.len(), batch.pairs.len());
    if found != expected {
        return Err(format!(
            "{found} gradients, expected one for each of {expected} pairs"
        ));
    }
    let metrics = convert::metrics_from_guest(answer.metrics);
    rules.check_metrics(&metrics)?;
    let mut gradients = Vec::with_capacity(expected);
    for (at, (gradient, pair)) in answer.gradients.into_iter().zip(&batch.pairs).enumerate() {
        let of_pair = |reason: String| format!("pair {at}: {reason}");
        if !gradient.loss.is_finite() {
            return Err(of_pair(format!(
                "the loss is {}, which is not finite",
                gradient.loss
            )));
        }
        check_partials("d-chosen", &gradient.d_chosen, true, &pair.chosen.mask, 1)
            .map_err(of_pair)?;
        check_partials(
            "d-rejected",
            &gradient.d_rejected,
            true,
            &pair.rejected.mask,
            1,
        )
        .map_err(of_pair)?;
        gradients.push(PairGradient {
            loss: gradient.loss,
            d_chosen: gradient.d_chosen,
            d_rejected: gradient.d_rejected,
        });
    }
    Ok(PairEvaluation { gradients, metrics })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> guest::Batch {
        let reply = |mask: &[u8]| ScoredReply {
            tokens: vec![1; mask.len()],
            mask: mask.to_vec(),
            logprob: vec![-1.0; mask.len()],
            ref_logprob: vec![-1.0; mask.len()],
        };
        to_guest(PairBatch {
            pairs: vec![ScoredPair {
                chosen: reply(&[1, 0]),
                rejected: reply(&[1]),
            }],
            step: 1,
        })
    }

    fn checked(change: impl FnOnce(&mut guest::Evaluation)) -> Result<PairEvaluation, String> {
        let mut answer = guest::Evaluation {
            gradients: vec![guest::Gradient {
                loss: 0.5,
                d_chosen: vec![-0.1, 0.0],
                d_rejected: vec![0.1],
            }],
            metrics: Vec::new(),
        };
        change(&mut answer);
        check(answer, &batch(), &VerdictRules::default())
    }

    #[test]
    fn partials_must_be_finite_one_per_token_and_zero_at_masked_tokens() {
        assert!(checked(|_| {}).is_ok());
        for (name, bad) in [
            ("none", checked(|all| all.gradients.clear())),
            ("loss", checked(|all| all.gradients[0].loss = f64::NAN)),
            (
                "short",
                checked(|all| all.gradients[0].d_chosen.truncate(1)),
            ),
            ("long", checked(|all| all.gradients[0].d_rejected.push(0.0))),
            ("masked", checked(|all| all.gradients[0].d_chosen[1] = 1e-9)),
            (
                "nan",
                checked(|all| all.gradients[0].d_rejected[0] = f32::NAN),
            ),
            ("huge", checked(|all| all.gradients[0].d_chosen[0] = 1e38)),
        ] {
            assert!(bad.is_err(), "{name}");
        }
    }
}
