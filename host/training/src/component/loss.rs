//! Loss as a component: builds its input batch from a micro-batch and maps its result back to the sequences.

use std::collections::BTreeMap;

use clawhost_engine::SequenceScores;
use clawhost_plugins::{Fault, LossBatch, Metric, Plugin, Requirements};

use crate::batch_sample::BatchSample;
use crate::component::call::{ComponentOptions, Receipts};
use crate::distillation::target::TrainingTarget;
use crate::error::TrainingError;
use crate::forced_tokens;
use crate::loss::{SequenceLoss, sum_kl};
use clawhost_config::OldLogprobsSource;

#[derive(Debug, Clone)]
pub(crate) struct LossComponent {
    plugin: Plugin,
    needs: Requirements,
    calls: ComponentOptions,
}

/// Losses of one micro-batch.
pub(crate) struct LossOutput {
    pub(crate) losses: Vec<SequenceLoss<f32>>,
    /// Metrics of the component.
    pub(crate) metrics: Vec<Metric>,
}

/// Inputs of the loss of one sequence.
pub(crate) struct LossInput<'a> {
    pub(crate) chosen: &'a BatchSample,
    pub(crate) target: &'a TrainingTarget,
    pub(crate) scored: &'a SequenceScores,
    /// Log-probs recomputed by the trainer before the update.
    pub(crate) recomputed: &'a [f32],
    pub(crate) reference: &'a [f32],
}

impl<'a> LossInput<'a> {
    /// The old log-probs in the importance ratio.
    pub(crate) fn old(&self, ratio: OldLogprobsSource) -> &'a [f32] {
        match ratio {
            OldLogprobsSource::Recorded if !self.chosen.off_policy => {
                &self.chosen.sample.full_logprobs
            }
            OldLogprobsSource::Recorded | OldLogprobsSource::Recomputed => self.recomputed,
        }
    }
}

impl LossComponent {
    pub(super) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// The inputs that the component reads and the derivatives that it returns.
    pub(crate) fn needs(&self) -> Requirements {
        self.needs
    }

    pub(super) async fn open(
        plugin: &Plugin,
        calls: &ComponentOptions,
    ) -> Result<Self, TrainingError> {
        let context = calls.context(plugin, "describe".to_owned());
        let needs = plugin
            .describe_loss(context)
            .await
            .outcome
            .map_err(|fault| {
                TrainingError::Component(format!(
                    "{} does not describe its inputs: {fault}",
                    plugin.name()
                ))
            })?;
        if (needs.teacher || needs.teacher_topk) && !calls.teacher {
            return Err(TrainingError::Component(format!(
                "{} needs a teacher's log-probabilities, but training.method = \"binary\" has no teacher; set it to \"opd\", \"hybrid\", \"opd-topk\", \"hybrid-topk\" or \"hybrid-divergence\"",
                plugin.name()
            )));
        }
        Ok(Self {
            plugin: plugin.clone(),
            needs,
            calls: calls.clone(),
        })
    }

    /// The losses of one micro-batch, one per sequence. `tokens` and `sequences` count the whole optimizer update. The
    /// micro-batch's loss is assigned to its first sequence.
    pub(crate) fn evaluate(
        &self,
        members: &[LossInput<'_>],
        ratio: OldLogprobsSource,
        tokens: usize,
        sequences: usize,
        (step, receipts): (u64, &Receipts),
    ) -> Result<LossOutput, Fault> {
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
            let next_group = u32::try_from(groups.len()).expect("a batch is small");
            let group = *groups.entry(sample.group.as_str()).or_insert(next_group);
            let end = batch.tokens.len() + length;
            batch
                .offsets
                .push(u32::try_from(end).expect("a micro-batch has fewer tokens"));
            batch.groups.push(group);
            // A missing reward is NaN, not 0.
            batch.rewards.push(sample.reward.unwrap_or(f32::NAN));
            batch.tokens.extend(&sample.token_ids);
            let target = member.target;
            if target.mask.is_empty() {
                batch.mask.resize(batch.mask.len() + length, 1);
            } else {
                batch
                    .mask
                    .extend(target.mask.iter().map(|trains| u8::from(*trains)));
            }
            batch.advantages.extend(&target.advantages);
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
                extend_or_nan(&mut batch.teacher_logprob, &target.teacher, length);
            }
            let topk_tokens = target.topk_tokens.as_ref();
            if self.needs.topk || self.needs.teacher_topk {
                batch
                    .topk_ids
                    .extend(topk_tokens.map_or(&[][..], |c| &c.ids));
                batch.topk_logprob.extend(&member.scored.candidate_logprobs);
            }
            if self.needs.teacher_topk {
                let teacher = topk_tokens.map_or(&[][..], |c| &c.teacher);
                let count = length * self.needs.k as usize;
                extend_or_nan(&mut batch.teacher_topk_logprob, teacher, count);
            }
        }
        let batch_tokens = batch.tokens.len();
        let context = self.calls.context(&self.plugin, format!("step {step}"));
        let output = receipts.block_on(self.plugin.evaluate_loss(context, self.needs, batch))?;
        let mut d_logprob = output.d_logprob.into_iter();
        let mut d_entropy = output.d_entropy.into_iter();
        let mut d_topk = output.d_topk.into_iter();
        let mut loss = output.loss;
        let mut clipped = clipped_tokens(&output.metrics, batch_tokens);
        let losses = members
            .iter()
            .map(|member| {
                let length = member.scored.logprobs.len();
                // Without derivatives with respect to the log-probs they are 0.
                let mut partial: Vec<f32> = d_logprob.by_ref().take(length).collect();
                partial.resize(length, 0.0);
                let k = self.needs.k as usize;
                let mut entropies: Vec<f32> = d_entropy.by_ref().take(length).collect();
                let mut candidates: Vec<f32> = d_topk.by_ref().take(length * k).collect();
                // The component gets the mask; enforce it for forced tokens.
                let forced = &member.chosen.sample.forced;
                forced_tokens::fill(&mut partial, forced, 1, 0.0);
                forced_tokens::fill(&mut entropies, forced, 1, 0.0);
                forced_tokens::fill(&mut candidates, forced, k, 0.0);
                let now = &member.scored.logprobs;
                let trained =
                    |values: &[f32]| forced_tokens::select_trained(values, &member.target.mask);
                SequenceLoss {
                    loss: std::mem::take(&mut loss),
                    d_logprob: partial,
                    d_entropy: entropies,
                    d_candidates: candidates,
                    tokens: member.target.tokens(),
                    clipped: std::mem::take(&mut clipped),
                    kl_penalty: 0.0,
                    kl_old: sum_kl(&trained(now), &trained(member.old(ratio))),
                    entropy: trained(&member.scored.entropies)
                        .into_iter()
                        .map(f64::from)
                        .sum(),
                }
            })
            .collect();
        Ok(LossOutput {
            losses,
            metrics: output.metrics,
        })
    }
}

/// Appends a teacher's values, or `count` NaN if it returned none.
fn extend_or_nan(into: &mut Vec<f32>, values: &[f32], count: usize) {
    if values.len() == count {
        into.extend(values);
    } else {
        into.resize(into.len() + count, f32::NAN);
    }
}

/// The number of clipped tokens, from the component's metric `clip_fraction`.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a token count, brought into its range"
)]
fn clipped_tokens(metrics: &[Metric], tokens: usize) -> usize {
    let fraction = metrics.iter().find(|metric| metric.name == "clip_fraction");
    fraction.map_or(0, |fraction| {
        (fraction.value.clamp(0.0, 1.0) * tokens as f64).round() as usize
    })
}
