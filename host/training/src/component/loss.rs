//! A loss that is a component: what it is given of a pass, and what its answer means for each sequence.

use std::collections::BTreeMap;

use clawhost_plugins::{Fault, LossBatch, Metric, Plugin, Requirements};
use clawhost_policy::Scored;

use crate::batch::Chosen;
use crate::component::{ComponentCalls, Receipts};
use crate::error::TrainingError;
use crate::forced;
use crate::loss::SequenceLoss;
use crate::options::RatioFrom;
use crate::teaching::Lesson;
use crate::update::drift;

#[derive(Debug, Clone)]
pub(crate) struct LossComponent {
    plugin: Plugin,
    needs: Requirements,
    calls: ComponentCalls,
}

/// What a loss made of one pass.
pub(crate) struct Evaluated {
    pub(crate) losses: Vec<SequenceLoss<f32>>,
    /// Numbers of the component's own.
    pub(crate) metrics: Vec<Metric>,
}

/// What one sequence of a pass brings to a loss.
pub(crate) struct Member<'a> {
    pub(crate) chosen: &'a Chosen,
    pub(crate) lesson: &'a Lesson,
    pub(crate) scored: &'a Scored,
    /// Log-probs that the trainer computed before the update.
    pub(crate) recomputed: &'a [f32],
    pub(crate) reference: &'a [f32],
}

impl<'a> Member<'a> {
    /// The log-probs that the ratio is measured from.
    pub(crate) fn old(&self, ratio: RatioFrom) -> &'a [f32] {
        match ratio {
            RatioFrom::Recorded => &self.chosen.sample.full_logprobs,
            RatioFrom::Recomputed => self.recomputed,
        }
    }
}

impl LossComponent {
    pub(super) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// What it reads and what it is differentiated by.
    pub(crate) fn needs(&self) -> Requirements {
        self.needs
    }

    pub(super) async fn open(
        plugin: &Plugin,
        calls: &ComponentCalls,
    ) -> Result<Self, TrainingError> {
        let context = calls.context(plugin, "describe".to_owned());
        let needs = plugin
            .describe_loss(context)
            .await
            .outcome
            .map_err(|fault| {
                TrainingError::Component(format!(
                    "{} does not describe itself: {fault}",
                    plugin.name()
                ))
            })?;
        if (needs.teacher || needs.teacher_topk) && !calls.teacher {
            return Err(TrainingError::Component(format!(
                "{} reads a teacher's log-probabilities, and with training.method = \"binary\" there is no teacher; set it to \"opd\", \"hybrid\" or one of their top-k forms",
                plugin.name()
            )));
        }
        Ok(Self {
            plugin: plugin.clone(),
            needs,
            calls: calls.clone(),
        })
    }

    /// The losses of one pass, sequence by sequence. `tokens` and `sequences` are those of the
    /// whole optimizer update. The pass' loss is booked on its first sequence.
    pub(crate) fn evaluate(
        &self,
        members: &[Member<'_>],
        ratio: RatioFrom,
        tokens: usize,
        sequences: usize,
        (step, receipts): (u64, &Receipts),
    ) -> Result<Evaluated, Fault> {
        let mut batch = LossBatch {
            offsets: vec![0],
            step_tokens: tokens as u64,
            step_sequences: sequences as u64,
            step,
            ..LossBatch::default()
        };
        let mut groups = BTreeMap::new();
        for member in members {
            let sample = &member.chosen.sample;
            let length = sample.token_ids.len();
            let known = u32::try_from(groups.len()).unwrap_or(u32::MAX);
            let group = *groups.entry(sample.group.as_str()).or_insert(known);
            let end = batch.offsets.last().copied().unwrap_or(0);
            let length_u32 = u32::try_from(length).unwrap_or(u32::MAX);
            batch.offsets.push(end.saturating_add(length_u32));
            batch.groups.push(group);
            // A reply without a reward is no reply of reward 0: its advantages hold what there is.
            batch.rewards.push(sample.reward.unwrap_or(f32::NAN));
            batch.tokens.extend(&sample.token_ids);
            let lesson = member.lesson;
            if lesson.mask.is_empty() {
                batch.mask.resize(batch.mask.len() + length, 1);
            } else {
                batch
                    .mask
                    .extend(lesson.mask.iter().map(|trains| u8::from(*trains)));
            }
            batch.advantages.extend(&lesson.advantages);
            batch.logprob.extend(&member.scored.logprobs);
            if self.needs.old {
                batch.old_logprob.extend(member.old(ratio));
            }
            if self.needs.reference {
                batch.ref_logprob.extend(member.reference);
            }
            if self.needs.entropy {
                batch.entropy.extend(&member.scored.entropies);
            }
            if self.needs.teacher {
                extend_or_nan(&mut batch.teacher_logprob, &lesson.teacher, length);
            }
            let compared = lesson.compared.as_ref();
            if self.needs.topk || self.needs.teacher_topk {
                batch.topk_ids.extend(compared.map_or(&[][..], |c| &c.ids));
                batch.topk_logprob.extend(&member.scored.candidate_logprobs);
            }
            if self.needs.teacher_topk {
                let theirs = compared.map_or(&[][..], |c| &c.teacher);
                let wanted = length * self.needs.k as usize;
                extend_or_nan(&mut batch.teacher_topk_logprob, theirs, wanted);
            }
        }
        let batch_tokens = batch.tokens.len();
        let context = self.calls.context(&self.plugin, format!("step {step}"));
        let answer = receipts.wait(self.plugin.evaluate_loss(context, self.needs, batch))?;
        let mut d_logprob = answer.d_logprob.into_iter();
        let mut d_entropy = answer.d_entropy.into_iter();
        let mut d_topk = answer.d_topk.into_iter();
        let mut loss = answer.loss;
        let mut clipped = clipped(&answer.metrics, batch_tokens);
        let losses = members
            .iter()
            .map(|member| {
                let length = member.scored.logprobs.len();
                // A loss that is not differentiated by the log-probs has none of their partials.
                let mut partial: Vec<f32> = d_logprob.by_ref().take(length).collect();
                partial.resize(length, 0.0);
                let k = self.needs.k as usize;
                let mut entropies: Vec<f32> = d_entropy.by_ref().take(length).collect();
                let mut candidates: Vec<f32> = d_topk.by_ref().take(length * k).collect();
                // The mask tells a component where nothing is to be learned; that it keeps to it is seen to here.
                let forced = &member.chosen.sample.forced;
                forced::set(&mut partial, forced, 1, 0.0);
                forced::set(&mut entropies, forced, 1, 0.0);
                forced::set(&mut candidates, forced, k, 0.0);
                let now = &member.scored.logprobs;
                let of = |values: &[f32]| forced::kept(values, &member.lesson.mask);
                SequenceLoss {
                    loss: std::mem::take(&mut loss),
                    d_logprob: partial,
                    d_entropy: entropies,
                    d_candidates: candidates,
                    tokens: member.lesson.tokens(),
                    clipped: std::mem::take(&mut clipped),
                    divergence: drift(&of(member.reference), &of(now)),
                    drift: drift(&of(now), &of(member.old(ratio))),
                    entropy: of(&member.scored.entropies)
                        .into_iter()
                        .map(f64::from)
                        .sum(),
                }
            })
            .collect();
        Ok(Evaluated {
            losses,
            metrics: answer.metrics,
        })
    }
}

/// What a teacher said, or NaN for each value that it did not: there is no number for "no teacher".
fn extend_or_nan(into: &mut Vec<f32>, values: &[f32], wanted: usize) {
    if values.len() == wanted {
        into.extend(values);
    } else {
        into.resize(into.len() + wanted, f32::NAN);
    }
}

/// Tokens that a loss says it clipped, by the name that the native losses' number has as well.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a token count, brought into its range"
)]
fn clipped(metrics: &[Metric], tokens: usize) -> usize {
    let share = metrics.iter().find(|metric| metric.name == "clip_fraction");
    share.map_or(0, |share| {
        (share.value.clamp(0.0, 1.0) * tokens as f64).round() as usize
    })
}
