//! The numeric part of a step: from a batch to updated parameters, of an adapter or of the full model.
//!
//! Losses on the log-probs of a forward pass; the backend's training session differentiates and updates. Samples are packed
//! into micro-batches of at most `training.micro_batch_tokens` tokens per device; gradients accumulate over the micro-batches of one
//! optimizer update. This module reads no queue, writes no file and publishes nothing.

use std::time::Instant;

use clawhost_engine::{AdamW, LossGradients, OptimizerStep, SequenceScores, TrainSession};
use clawhost_model::TrainedWeights;

use crate::auxiliary::AuxiliaryLosses;
use crate::batch_sample::BatchSample;
use crate::component::LossInput;
use crate::distillation::{
    ScoringPlan, TopKLoss, TopKTokens, TrainingTarget, build_training_targets,
};
use crate::forced_tokens::{scatter_trained, select_trained, train_mask};
use crate::loss::{SequenceCoefficients, SequenceInputs, SequenceLoss, sum_kl};
use crate::optimizer::{LrSchedule, OptimizerState, clip_factor, update_ema};
use crate::options::{importance_sampling, objective};
use crate::packing::{ModelInput, epoch_order, sequences, split_evenly, split_micro_batches};
use crate::report::{SampleLossStats, SampleReport, Totals, UpdateReport};
use crate::reward_shaping::batch_token_advantages;
use crate::update_task::{UpdateError, UpdateTask};
use clawhost_config::TeacherSource;

/// Result of an update.
#[derive(Debug)]
pub(crate) struct UpdateOutput {
    pub(crate) weights: TrainedWeights,
    pub(crate) optimizer_state: OptimizerState,
    /// Reply log-probs of each sample before the update.
    pub(crate) before: Vec<Vec<f32>>,
    pub(crate) report: UpdateReport,
}

/// Runs all optimizer updates of one step.
pub(crate) fn update(task: &UpdateTask<'_>) -> Result<UpdateOutput, UpdateError> {
    let mut inputs: Vec<ModelInput> = task.chosen.iter().map(ModelInput::from_sample).collect();
    let started = Instant::now();
    let reference = logprobs(task.score(None, &inputs, None)?);
    let reference_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let minibatches = task.options.num_minibatches.min(inputs.len()).max(1);
    // With several updates per epoch the old log-probs must be computed before the first one; a teacher is compared with
    // them as well. With a single update the forward pass of the update provides them.
    let needs = task
        .component
        .as_ref()
        .map(|step_component| step_component.component.needs());
    let trains_samples = task.trains_samples();
    let plan = match trains_samples {
        true => ScoringPlan::new(task.options, needs),
        false => ScoringPlan::untrained(),
    };
    // Samples that do not train have no forward pass in the update that could provide the log-probs.
    let before = if !trains_samples || minibatches > 1 || plan.scores_before() {
        task.score(Some(task.weights), &inputs, plan.policy_top_k())?
    } else {
        Vec::new()
    };
    let reward_advantages = batch_token_advantages(task.chosen, &reference, task.options);
    let targets = build_training_targets(task, plan, &before, &reward_advantages)?;
    for (input, target) in inputs.iter_mut().zip(&targets) {
        if let Some(topk_tokens) = &target.topk_tokens {
            input.set_candidates(topk_tokens.ids.clone(), topk_tokens.k);
        }
    }
    let have_old_logprobs = !before.is_empty();
    let entropy = (!trains_samples).then(|| mean_entropy(&before));
    let mut before = logprobs(before);
    before.resize(inputs.len(), Vec::new());
    let auxiliary = AuxiliaryLosses::new(task)?;
    let teacher_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let mut run = UpdateRun {
        task,
        inputs: &inputs,
        targets: &targets,
        reference: &reference,
        session: task.backend.train(
            task.weights,
            Some(task.optimizer_state.adamw.clone()),
            task.options.into(),
        )?,
        auxiliary,
        minibatches: 0,
        loss_stats: vec![SampleLossStats::default(); inputs.len()],
        report: UpdateReport {
            reference_seconds,
            teacher_seconds,
            ..UpdateReport::default()
        },
    };
    for epoch in 0..task.options.num_epochs {
        let order = epoch_order(inputs.len(), minibatches, task.seed, epoch);
        let mut totals = Totals::default();
        let mut done = 0;
        for part in split_evenly(inputs.len(), minibatches) {
            done += 1;
            run.train_minibatch(
                &order[part],
                epoch == 0 && !have_old_logprobs,
                &mut before,
                &mut totals,
            )?;
            if run.has_ended() {
                break;
            }
        }
        run.report.record_epoch(&totals, epoch, done);
        run.auxiliary.end_epoch();
        if run.has_ended() {
            break;
        }
    }
    let (mut session, mut report, loss_stats) = (run.session, run.report, run.loss_stats);
    report.entropy = entropy.unwrap_or(report.entropy);
    report.auxiliary = run.auxiliary.finish(&mut *session)?;
    for (chosen, recomputed) in task.chosen.iter().zip(&before) {
        let sample = &chosen.sample;
        if chosen.off_policy {
            continue;
        }
        report.mismatch.add(recomputed, &sample.full_logprobs);
        if sample.adapter_version == task.active {
            report.parity_samples += 1;
            report.parity.add(recomputed, &sample.full_logprobs);
        }
    }
    report.kl_reference = kl_to_reference(task.chosen, &before, &reference);
    report.reply_tokens = task.chosen.iter().map(|c| c.sample.token_ids.len()).sum();
    report.forced_tokens = task.chosen.iter().map(|c| c.sample.forced.len()).sum();
    report.all_tokens = inputs.iter().map(|input| input.tokens.len()).sum();
    report.update_seconds = started.elapsed().as_secs_f64();
    let after = if report.updates > 0 && trains_samples {
        logprobs(task.score_session(&mut *session, &inputs, None)?)
    } else {
        Vec::new()
    };
    let (weights, adamw) = session.finish()?;
    let mut ema = task.optimizer_state.ema.clone();
    if task.options.teacher.source == TeacherSource::Ema && report.updates > 0 {
        if ema.is_empty() {
            // The moving average starts at the weights before the first step.
            let start = task.weights.tensors();
            update_ema(&mut ema, start.into_iter().map(|(_, v)| v), 1.0);
        }
        let updated = weights.tensors();
        let rate = task.options.teacher.ema_rate;
        update_ema(&mut ema, updated.into_iter().map(|(_, v)| v), rate);
    }
    report.samples = sample_reports(task, &targets, loss_stats, &before, &after);
    Ok(UpdateOutput {
        weights,
        optimizer_state: OptimizerState { adamw, ema },
        before,
        report,
    })
}

/// Mean entropy over all reply tokens.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
fn mean_entropy(scored: &[SequenceScores]) -> f64 {
    let all = || scored.iter().flat_map(|scored| &scored.entropies);
    all().map(|entropy| f64::from(*entropy)).sum::<f64>() / all().count().max(1) as f64
}

/// Mean KL estimate per reply token that no grammar forced, from log-probs under the policy and the base model.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
fn kl_to_reference(chosen: &[BatchSample], policy: &[Vec<f32>], reference: &[Vec<f32>]) -> f64 {
    let (mut sum, mut tokens) = (0.0, 0);
    for ((chosen, policy), reference) in chosen.iter().zip(policy).zip(reference) {
        let mask = train_mask(&chosen.sample);
        let policy = select_trained(policy, &mask);
        sum += sum_kl(&select_trained(reference, &mask), &policy);
        tokens += policy.len();
    }
    sum / tokens.max(1) as f64
}

fn logprobs(scored: Vec<SequenceScores>) -> Vec<Vec<f32>> {
    scored.into_iter().map(|scored| scored.logprobs).collect()
}

/// The state of an update in progress.
struct UpdateRun<'a> {
    task: &'a UpdateTask<'a>,
    inputs: &'a [ModelInput],
    targets: &'a [TrainingTarget],
    reference: &'a [Vec<f32>],
    session: Box<dyn TrainSession>,
    auxiliary: AuxiliaryLosses<'a>,
    /// Minibatches so far.
    minibatches: usize,
    /// Loss statistics of each sample in its last epoch.
    loss_stats: Vec<SampleLossStats>,
    report: UpdateReport,
}

impl UpdateRun<'_> {
    /// Whether a minibatch ended the step.
    fn has_ended(&self) -> bool {
        self.report.stopped_at_kl.is_some() || self.report.pairs_satisfied
    }

    /// Forward and backward over the auxiliary losses and, if samples train, over the micro-batches of a minibatch, then one
    /// optimizer update, unless the policy is further than `training.target_kl` from that before the step, or neither
    /// samples nor pairs nor replies after examples are left to learn from: rehearsal alone would turn rounding errors into updates.
    fn train_minibatch(
        &mut self,
        members: &[usize],
        keep_before: bool,
        before: &mut [Vec<f32>],
        totals: &mut Totals,
    ) -> Result<(), UpdateError> {
        let options = self.task.options;
        let members = match self.task.trains_samples() {
            true => members,
            false => &[],
        };
        let lengths: Vec<usize> = members.iter().map(|&i| self.targets[i].tokens()).collect();
        let coefficients = options.loss.aggregation.coefficients(&lengths);
        self.session.zero_gradients()?;
        let number = self.minibatches;
        self.minibatches += 1;
        let learns = self.auxiliary.accumulate(&mut *self.session, number)?;
        if !(learns || self.task.trains_samples()) {
            self.report.pairs_satisfied = true;
            return Ok(());
        }
        let before_minibatch = totals.divergence();
        let mut done = 0;
        for micro_batch in split_micro_batches(members, self.inputs, self.task.micro_batch()) {
            self.task.check_stop()?;
            let sequences = sequences(&micro_batch, self.inputs, None);
            let scored = self.session.forward(&sequences)?;
            if keep_before {
                for (&member, scored) in micro_batch.iter().zip(&scored) {
                    before[member].clone_from(&scored.logprobs);
                }
            }
            let coefficients = &coefficients[done..];
            let losses = self.losses(
                &micro_batch,
                &scored,
                before,
                coefficients,
                &lengths,
                totals,
            )?;
            let mut partials: Vec<LossGradients> = Vec::with_capacity(losses.len());
            for (((mut loss, &member), scored), coefficient) in losses
                .into_iter()
                .zip(&micro_batch)
                .zip(&scored)
                .zip(coefficients)
            {
                let mut d_candidates = std::mem::take(&mut loss.d_candidates);
                if let Some((topk_loss, topk_tokens, mask)) = self.topk_loss(member) {
                    let logprobs = &scored.candidate_logprobs;
                    let output = topk_loss.evaluate(topk_tokens, logprobs, mask, *coefficient);
                    loss.loss += output.loss;
                    d_candidates = output.d_candidates;
                }
                let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
                if !(loss.loss.is_finite()
                    && finite(&loss.d_logprob)
                    && finite(&loss.d_entropy)
                    && finite(&d_candidates))
                {
                    return Err(UpdateError::NotFinite { what: "the loss" });
                }
                totals.add(&loss);
                self.loss_stats[member] = SampleLossStats::new(&loss, &d_candidates);
                partials.push(LossGradients {
                    d_logprob: loss.d_logprob,
                    d_entropy: loss.d_entropy,
                    d_candidates,
                });
            }
            done += micro_batch.len();
            self.session.backward(&partials)?;
        }
        let divergence = totals.mean_divergence_since(before_minibatch);
        if options.target_kl > 0.0 && divergence > options.target_kl {
            self.report.stopped_at_kl = Some(divergence);
            return Ok(());
        }
        let norm = self.session.gradient_norm()?;
        if !norm.is_finite() {
            return Err(UpdateError::NotFinite {
                what: "the gradient",
            });
        }
        self.report.gradient_norm = self.report.gradient_norm.max(norm);
        if norm == 0.0 {
            // Without a gradient, weight decay alone would change the parameters.
            return Ok(());
        }
        let number = self.session.updates() + 1;
        let rate = LrSchedule::from(&options.optimizer).learning_rate(number)
            * self.task.learning_rate_scale;
        self.session.step(OptimizerStep {
            adamw: AdamW::from(&options.optimizer),
            learning_rate: rate,
            gradient_scale: clip_factor(norm, options.optimizer.max_grad_norm),
        })?;
        self.report.updates += 1;
        self.report.learning_rate = rate;
        Ok(())
    }

    /// The native top-k loss of a sample with its tokens and mask; none if the sample has none.
    fn topk_loss(&self, member: usize) -> Option<(&TopKLoss, &TopKTokens, &[bool])> {
        let target = &self.targets[member];
        Some((
            target.topk_loss.as_ref()?,
            target.topk_tokens.as_ref()?,
            &target.mask,
        ))
    }

    /// The losses of one micro-batch, from the component or the native objective.
    fn losses(
        &self,
        micro_batch: &[usize],
        scored: &[SequenceScores],
        before: &[Vec<f32>],
        coefficients: &[f64],
        lengths: &[usize],
        totals: &mut Totals,
    ) -> Result<Vec<SequenceLoss<f32>>, UpdateError> {
        let members: Vec<LossInput<'_>> = micro_batch
            .iter()
            .zip(scored)
            .map(|(&member, scored)| LossInput {
                chosen: &self.task.chosen[member],
                target: &self.targets[member],
                scored,
                recomputed: &before[member],
                reference: &self.reference[member],
            })
            .collect();
        if let Some(step_component) = &self.task.component {
            let old = self.task.options.loss.old_logprobs;
            let output = step_component.component.evaluate(
                &members,
                old,
                lengths.iter().sum(),
                lengths.len(),
                (step_component.step, step_component.receipts),
            )?;
            totals.add_component_metrics(
                output.metrics,
                output.losses.iter().map(|loss| loss.tokens).sum(),
            );
            return Ok(output.losses);
        }
        members
            .iter()
            .zip(coefficients)
            .map(|(member, &coefficient)| self.loss(member, coefficient))
            .collect()
    }

    fn loss(
        &self,
        member: &LossInput<'_>,
        coefficient: f64,
    ) -> Result<SequenceLoss<f32>, UpdateError> {
        let LossInput {
            chosen,
            target,
            scored,
            recomputed,
            reference,
        } = *member;
        let options = &self.task.options.loss;
        let recorded = &chosen.sample.full_logprobs;
        let old = member.old(options.old_logprobs);
        // Sequence-level importance weights use only the trained tokens.
        let trained = |logprobs: &[f32]| select_trained(logprobs, &target.mask);
        let weights = importance_sampling(options)
            .filter(|_| !(recomputed.is_empty() || chosen.off_policy))
            .map(|importance| importance.weights(&trained(recomputed), &trained(recorded)))
            .map(|weights| scatter_trained(weights, &target.mask, 1.0))
            .unwrap_or_default();
        let loss = objective(options).evaluate(
            &SequenceInputs {
                logprobs: &scored.logprobs,
                entropies: &scored.entropies,
                old,
                reference,
                weights: &weights,
                advantages: &target.advantages,
                mask: &target.mask,
            },
            coefficient,
        )?;
        Ok(loss)
    }
}

/// One report per sample, shown by `clawhost explain`.
fn sample_reports(
    task: &UpdateTask<'_>,
    targets: &[TrainingTarget],
    loss_stats: Vec<SampleLossStats>,
    before: &[Vec<f32>],
    after: &[Vec<f32>],
) -> Vec<SampleReport> {
    let sum = |logprobs: &Vec<f32>| logprobs.iter().map(|lp| f64::from(*lp)).sum::<f64>();
    let rows = task.chosen.iter().zip(targets).zip(loss_stats).enumerate();
    rows.map(|(i, ((chosen, target), stats))| SampleReport {
        sample: chosen.sample.id,
        turn: chosen.sample.turn,
        reward: chosen.sample.reward,
        hint: target.hint.and_then(|hint| chosen.hinted[hint].hint),
        experience: target
            .hint
            .map(|hint| chosen.hinted[hint].experience.clone())
            .unwrap_or_default(),
        off_policy: chosen.off_policy,
        advantage: target.advantage(),
        gap: target.gap,
        teacher_kl: target.teacher_kl,
        teacher_silent: target.teacher_error.clone(),
        tokens: target.tokens(),
        loss: stats.loss,
        pull: stats.gradient_l1,
        clip_fraction: stats.clip_fraction,
        logprob_before: before.get(i).map(sum),
        logprob_after: after.get(i).map(sum),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::sample;

    #[test]
    fn a_collapsed_token_does_not_decide_the_divergence_to_the_base_model() {
        let chosen = |forced: &[u32]| {
            let mut sample = sample(1, 1.0);
            sample.forced = forced.to_vec();
            BatchSample {
                sample,
                advantage: Some(1.0),
                token_advantages: None,
                hinted: Vec::new(),
                off_policy: false,
                staleness: 0,
            }
        };
        let kl = |forced: &[u32], policy: [f32; 2], reference: [f32; 2]| {
            kl_to_reference(&[chosen(forced)], &[policy.to_vec()], &[reference.to_vec()])
        };
        assert_eq!(kl(&[], [-1.0, -2.0], [-1.0, -2.0]), 0.0);
        let one = (-0.5f64).exp() - 1.0 + 0.5;
        assert!((kl(&[], [-1.0, -2.0], [-1.5, -2.0]) - one / 2.0).abs() < 1e-6);
        // exp(20) without the clamp.
        assert_eq!(kl(&[], [-21.0, -2.0], [-1.0, -2.0]), 5.0);
        assert_eq!(kl(&[0], [-21.0, -2.0], [-1.0, -2.0]), 0.0);
    }
}
