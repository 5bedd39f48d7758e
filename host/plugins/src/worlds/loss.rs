//! `loss-plugin`: a training objective, and its partial derivatives.
//!
//! The host back-propagates exactly the partials that are returned here, so nothing gets past this
//! module that is not finite, of the right length and zero where no token trains.

use serde::{Deserialize, Serialize};

use crate::bindings::loss as guest;
use crate::call::CallContext;
use crate::calls::Export;
use crate::convert;
use crate::host::{Called, Plugin};
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::verdict::{Metric, VerdictRules};

/// Largest absolute partial derivative that is taken.
const MAX_PARTIAL: f32 = 1e6;
/// Most vocabulary entries a position that a loss may ask for.
const MAX_K: u32 = 64;

/// What a loss is differentiated by, and what it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Requirements {
    /// Differentiated by the log-probabilities of the sampled tokens.
    pub logprob: bool,
    /// Differentiated by the log-probabilities of the policy's `k` likeliest tokens.
    pub topk: bool,
    /// Differentiated by the entropy of each position.
    pub entropy: bool,
    /// Reads the log-probabilities before the step.
    pub old: bool,
    /// Reads the reference's log-probabilities.
    pub reference: bool,
    /// Reads the teacher's log-probabilities.
    pub teacher: bool,
    /// Reads the teacher's log-probabilities of the `k` entries.
    pub teacher_topk: bool,
    /// Vocabulary entries a position; 0 unless `topk` or `teacher_topk` is set.
    pub k: u32,
}

/// A microbatch: flat tensors, sequence after sequence. Absent tensors are empty.
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
    /// 1 where the token trains, `[tokens]`.
    pub mask: Vec<u8>,
    /// `[tokens]`.
    pub advantages: Vec<f32>,
    /// Log-probabilities now, nats, `[tokens]`.
    pub logprob: Vec<f32>,
    /// Before the step, `[tokens]`.
    pub old_logprob: Vec<f32>,
    /// Of the reference, `[tokens]`.
    pub ref_logprob: Vec<f32>,
    /// Of the teacher, `[tokens]`.
    pub teacher_logprob: Vec<f32>,
    /// Nats, `[tokens]`.
    pub entropy: Vec<f32>,
    /// `[tokens * k]`, row-major.
    pub topk_ids: Vec<u32>,
    /// `[tokens * k]`.
    pub topk_logprob: Vec<f32>,
    /// `[tokens * k]`.
    pub teacher_topk_logprob: Vec<f32>,
    /// Tokens that train in the whole optimizer step.
    pub step_tokens: u64,
    /// Sequences of the whole optimizer step.
    pub step_sequences: u64,
    /// The step's number.
    pub step: u64,
}

/// A microbatch's share of the step's loss and its partial derivatives, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct LossGradient {
    /// Finite.
    pub loss: f64,
    /// `[tokens]`; empty when the loss is not differentiated by it.
    pub d_logprob: Vec<f32>,
    /// `[tokens * k]`; empty likewise.
    pub d_topk: Vec<f32>,
    /// `[tokens]`; empty likewise.
    pub d_entropy: Vec<f32>,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// What the loss needs. Asked once after loading; the same for the life of the component.
    pub async fn describe_loss(&self, call: CallContext) -> Called<Requirements> {
        let Export::Loss(ready) = self.export() else {
            return self.wrong_kind(&call, Kind::Loss);
        };
        let ready = ready.clone();
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = ready.start(store).await?;
                let answer = guest
                    .call_describe(&mut *store)
                    .await
                    .map_err(Stop::while_running)?;
                described(&answer).map_err(Stop::BadOutput)
            })
        })
        .await
    }

    /// Evaluates the loss and its partials on a microbatch, in a fresh instance. `needs` is what
    /// [`Plugin::describe_loss`] answered. Dropping the future ends the call.
    pub async fn evaluate_loss(
        &self,
        call: CallContext,
        needs: Requirements,
        batch: LossBatch,
    ) -> Called<LossGradient> {
        let Export::Loss(ready) = self.export() else {
            return self.wrong_kind(&call, Kind::Loss);
        };
        let ready = ready.clone();
        let batch = to_guest(batch);
        let rules = call.limits.verdict;
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = ready.start(store).await?;
                let answer = guest
                    .call_evaluate(&mut *store, &batch)
                    .await
                    .map_err(Stop::while_running)?
                    .map_err(Stop::plugin_error)?;
                checked(answer, needs, &batch.mask, &rules).map_err(Stop::BadOutput)
            })
        })
        .await
    }
}

fn described(answer: &guest::Requirements) -> Result<Requirements, String> {
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
        return Err("the loss is differentiated by nothing, so it can train nothing".to_owned());
    }
    if needs.k > MAX_K {
        return Err(format!(
            "k is {}, at most {MAX_K} entries a position are given",
            needs.k
        ));
    }
    if (needs.topk || needs.teacher_topk) != (needs.k > 0) {
        return Err(format!(
            "k is {}: it belongs with topk or teacher-topk, and they need at least 1",
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

pub(crate) fn checked(
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
    partials("d-logprob", &answer.d_logprob, needs.logprob, mask, 1)?;
    partials("d-topk", &answer.d_topk, needs.topk, mask, needs.k as usize)?;
    partials("d-entropy", &answer.d_entropy, needs.entropy, mask, 1)?;
    Ok(LossGradient {
        loss: answer.loss,
        d_logprob: answer.d_logprob,
        d_topk: answer.d_topk,
        d_entropy: answer.d_entropy,
        metrics,
    })
}

/// `values` has `width` numbers for each position, or none when it is not wanted.
fn partials(
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
    for (position, (row, trains)) in values.chunks_exact(width).zip(mask).enumerate() {
        for value in row {
            if !value.is_finite() || value.abs() > MAX_PARTIAL {
                return Err(format!(
                    "{what} at position {position} is {value}, allowed is -{MAX_PARTIAL} to {MAX_PARTIAL}"
                ));
            }
            if *trains == 0 && *value != 0.0 {
                return Err(format!(
                    "{what} at position {position} is {value}, but that token does not train: 0 is expected"
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
        checked(gradient, NEEDS, &[1, 0, 1], &VerdictRules::default())
    }

    #[test]
    fn partials_are_finite_complete_and_zero_where_nothing_trains() {
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
    fn a_loss_says_what_it_is_differentiated_by() {
        let needs = |inputs, references, k| {
            described(&guest::Requirements {
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
