//! `loss-plugin`: a training objective and its partial derivatives.
//!
//! Training back-propagates exactly the partials returned here, so this module rejects partials that are not finite, not
//! of the right length, or not zero at masked tokens.

use serde::{Deserialize, Serialize};

use crate::bindings::loss as guest;
use crate::call::CallContext;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Metric};
use clawhost_config::VerdictRules;

/// Largest allowed absolute partial derivative.
const MAX_PARTIAL: f32 = 1e6;
/// Largest `k` (vocabulary entries per position) that a loss may request.
const MAX_K: u32 = 64;

/// The inputs that a loss is differentiated with respect to, and the reference values that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Requirements {
    /// Differentiated with respect to the logprobs of the sampled tokens.
    pub logprob: bool,
    /// Differentiated with respect to the logprobs of the policy's top-k tokens.
    pub topk: bool,
    /// Differentiated with respect to the entropy of each position.
    pub entropy: bool,
    /// Reads the logprobs before the step.
    pub old: bool,
    /// Reads the reference model's logprobs.
    pub reference: bool,
    /// Reads the teacher's logprobs.
    pub teacher: bool,
    /// Reads the teacher's logprobs of the top-k tokens.
    pub teacher_topk: bool,
    /// Vocabulary entries per position; 0 unless `topk` or `teacher_topk` is set.
    pub k: u32,
}

/// A micro-batch: flat tensors, sequence after sequence. Tensors that the loss does not require are empty.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossBatch {
    /// `sequences + 1` positions: sequence `i` is `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<u32>,
    /// Group of each sequence.
    pub groups: Vec<u32>,
    /// Reward of each sequence.
    pub rewards: Vec<f32>,
    /// Token ids, `[tokens]`.
    pub tokens: Vec<u32>,
    /// 1 where the token is trained, 0 elsewhere, `[tokens]`.
    pub mask: Vec<u8>,
    /// `[tokens]`.
    pub advantages: Vec<f32>,
    /// Current logprobs, in nats, `[tokens]`.
    pub logprob: Vec<f32>,
    /// Logprobs before the step, `[tokens]`.
    pub old_logprob: Vec<f32>,
    /// Logprobs of the reference model, `[tokens]`.
    pub ref_logprob: Vec<f32>,
    /// Logprobs of the teacher, `[tokens]`.
    pub teacher_logprob: Vec<f32>,
    /// Entropy, in nats, `[tokens]`.
    pub entropy: Vec<f32>,
    /// Ids of the policy's top-k tokens, `[tokens * k]`, row-major.
    pub topk_ids: Vec<u32>,
    /// The policy's logprobs of them, `[tokens * k]`.
    pub topk_logprob: Vec<f32>,
    /// The teacher's logprobs of them, `[tokens * k]`.
    pub teacher_topk_logprob: Vec<f32>,
    /// Trained tokens of the whole optimizer step.
    pub step_tokens: u64,
    /// Sequences of the whole optimizer step.
    pub step_sequences: u64,
    /// The step's number.
    pub step: u64,
}

/// A micro-batch's share of the step's loss, with its partial derivatives, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct LossGradient {
    /// The loss; finite.
    pub loss: f64,
    /// Partials with respect to `logprob`, `[tokens]`; empty if the loss is not differentiated with respect to it.
    pub d_logprob: Vec<f32>,
    /// Partials with respect to `topk_logprob`, `[tokens * k]`; may be empty likewise.
    pub d_topk: Vec<f32>,
    /// Partials with respect to `entropy`, `[tokens]`; may be empty likewise.
    pub d_entropy: Vec<f32>,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Returns the requirements of the loss. Call it once after loading: they are constant for a component.
    pub async fn describe_loss(&self, call: CallContext) -> CallResult<Requirements> {
        let Export::Loss(export) = self.export() else {
            return self.wrong_kind(&call, Kind::Loss);
        };
        let export = export.clone();
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = export.instantiate(store).await?;
                let answer = guest
                    .call_describe(&mut *store)
                    .await
                    .map_err(Stop::while_running)?;
                check_requirements(&answer).map_err(Stop::BadOutput)
            })
        })
        .await
    }

    /// Evaluates the loss and its partials on a micro-batch, in a fresh instance. `needs` is the result of
    /// [`Plugin::describe_loss`]. Dropping the future ends the call.
    pub async fn evaluate_loss(
        &self,
        call: CallContext,
        needs: Requirements,
        batch: LossBatch,
    ) -> CallResult<LossGradient> {
        let batch = to_guest(batch);
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            Loss,
            |guest, store| guest.call_evaluate(&mut *store, &batch),
            |answer| check_gradient(answer, needs, &batch.mask, &rules)
        )
    }
}

fn check_requirements(answer: &guest::Requirements) -> Result<Requirements, String> {
    let needs = Requirements {
        logprob: answer.differentiable.contains(guest::Inputs::LOGPROB),
        topk: answer.differentiable.contains(guest::Inputs::TOPK),
        entropy: answer.differentiable.contains(guest::Inputs::ENTROPY),
        old: answer.references.contains(guest::References::OLD),
        reference: answer.references.contains(guest::References::REFERENCE),
        teacher: answer.references.contains(guest::References::TEACHER),
        teacher_topk: answer.references.contains(guest::References::TEACHER_TOPK),
        k: answer.k,
    };
    if !(needs.logprob || needs.topk || needs.entropy) {
        return Err("the loss has no differentiable input, so it cannot train".to_owned());
    }
    if needs.k > MAX_K {
        return Err(format!("k is {}, the limit is {MAX_K}", needs.k));
    }
    if (needs.topk || needs.teacher_topk) != (needs.k > 0) {
        return Err(format!(
            "k is {}: it must be at least 1 with topk or teacher-topk and 0 without them",
            needs.k
        ));
    }
    Ok(needs)
}

fn to_guest(batch: LossBatch) -> guest::Batch {
    guest::Batch {
        offsets: batch.offsets,
        groups: batch.groups,
        rewards: batch.rewards,
        tokens: batch.tokens,
        mask: batch.mask,
        advantages: batch.advantages,
        logprob: batch.logprob,
        old_logprob: batch.old_logprob,
        ref_logprob: batch.ref_logprob,
        teacher_logprob: batch.teacher_logprob,
        entropy: batch.entropy,
        topk_ids: batch.topk_ids,
        topk_logprob: batch.topk_logprob,
        teacher_topk_logprob: batch.teacher_topk_logprob,
        step_tokens: batch.step_tokens,
        step_sequences: batch.step_sequences,
        step: batch.step,
    }
}

pub(crate) fn check_gradient(
    answer: guest::Gradient,
    needs: Requirements,
    mask: &[u8],
    rules: &VerdictRules,
) -> Result<LossGradient, String> {
    if !answer.loss.is_finite() {
        return Err(format!("the loss is {}, which is not finite", answer.loss));
    }
    let metrics = convert::metrics_from_guest(answer.metrics);
    rules.check_metrics(&metrics)?;
    check_partials("d-logprob", &answer.d_logprob, needs.logprob, mask, 1)?;
    check_partials("d-topk", &answer.d_topk, needs.topk, mask, needs.k as usize)?;
    check_partials("d-entropy", &answer.d_entropy, needs.entropy, mask, 1)?;
    Ok(LossGradient {
        loss: answer.loss,
        d_logprob: answer.d_logprob,
        d_topk: answer.d_topk,
        d_entropy: answer.d_entropy,
        metrics,
    })
}

/// Checks that `values` has `width` valid partials per position, or none if they are not wanted.
pub(super) fn check_partials(
    what: &str,
    values: &[f32],
    wanted: bool,
    mask: &[u8],
    width: usize,
) -> Result<(), String> {
    let expected = if wanted { mask.len() * width } else { 0 };
    if values.len() != expected {
        return Err(format!(
            "{what} has {} numbers, expected {expected}",
            values.len()
        ));
    }
    if !wanted || width == 0 {
        return Ok(());
    }
    for (position, (row, trained)) in values.chunks_exact(width).zip(mask).enumerate() {
        for value in row {
            if !value.is_finite() || value.abs() > MAX_PARTIAL {
                return Err(format!(
                    "{what} at position {position} is {value}, expected -{MAX_PARTIAL} to {MAX_PARTIAL}"
                ));
            }
            if *trained == 0 && *value != 0.0 {
                return Err(format!(
                    "{what} at position {position} is {value}, expected 0 at a masked token"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Requirements = Requirements {
        logprob: true,
        topk: true,
        entropy: false,
        old: false,
        reference: false,
        teacher: false,
        teacher_topk: false,
        k: 2,
    };

    fn gradient() -> guest::Gradient {
        guest::Gradient {
            loss: 0.5,
            d_logprob: vec![0.1, 0.0, -0.2],
            d_topk: vec![0.1, 0.2, 0.0, 0.0, 0.3, 0.4],
            d_entropy: Vec::new(),
            metrics: Vec::new(),
        }
    }

    fn check(change: impl FnOnce(&mut guest::Gradient)) -> Result<LossGradient, String> {
        let mut gradient = gradient();
        change(&mut gradient);
        check_gradient(gradient, NEEDS, &[1, 0, 1], &VerdictRules::default())
    }

    #[test]
    fn partials_must_be_finite_complete_and_zero_at_masked_tokens() {
        assert!(check(|_| {}).is_ok());
        for (name, bad) in [
            ("loss", check(|g| g.loss = f64::NAN)),
            ("short", check(|g| g.d_logprob.truncate(2))),
            ("long", check(|g| g.d_topk.push(0.0))),
            ("unwanted", check(|g| g.d_entropy = vec![0.0; 3])),
            ("masked", check(|g| g.d_logprob[1] = 1e-9)),
            ("masked row", check(|g| g.d_topk[3] = -1.0)),
            ("nan", check(|g| g.d_logprob[0] = f32::NAN)),
            ("infinite", check(|g| g.d_topk[5] = f32::INFINITY)),
            ("huge", check(|g| g.d_logprob[2] = 1e38)),
        ] {
            assert!(bad.is_err(), "{name}");
        }
    }

    #[test]
    fn invalid_requirements_are_rejected() {
        let needs = |inputs, references, k| {
            check_requirements(&guest::Requirements {
                differentiable: inputs,
                references,
                k,
            })
        };
        use guest::{Inputs, References};
        assert!(needs(Inputs::LOGPROB, References::OLD, 0).is_ok());
        assert!(needs(Inputs::TOPK, References::TEACHER_TOPK, 16).is_ok());
        assert!(needs(Inputs::empty(), References::OLD, 0).is_err());
        assert!(needs(Inputs::TOPK, References::empty(), 0).is_err());
        assert!(needs(Inputs::LOGPROB, References::empty(), 4).is_err());
        assert!(needs(Inputs::TOPK, References::empty(), 1000).is_err());
    }
}
