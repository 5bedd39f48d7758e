//! The numeric part of a step: from a batch to updated parameters, of an adapter or of the full model.
//!
//! Forward passes, losses on log-probs, hand-written backward pass, AdamW. Samples are packed into micro-batches of at most
//! `training.pass_tokens` tokens; gradients accumulate over the micro-batches of one optimizer update. This module reads
//! no queue, writes no file and publishes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clawhost_plugins::Fault;
use clawhost_policy::{
    ForwardError, Gradients, LossGradients, Model, Sequence, SequenceScores, TrainedWeights,
};

use crate::batch::BatchSample;
use crate::component::{LossComponent, LossInput, StepComponent};
use crate::distillation::{
    RemoteTeacher, ScoringPlan, TopKLoss, TopKTokens, TrainingTarget, build_training_targets,
};
use crate::forced_tokens::{scatter_trained, select_trained};
use crate::loss::{KlEstimator, LossError, SequenceInputs, SequenceLoss};
use crate::optimizer::{OptimizerState, Parameter, ShapeError, clip_factor, global_norm};
use crate::options::{TeacherSource, TrainingOptions};
use crate::packing::{ModelInput, epoch_order, sequences, split_evenly, split_micro_batches};
use crate::report::{SampleLossStats, SampleReport, Totals, UpdateReport};
use crate::reward_shaping::batch_token_advantages;

/// Inputs of an update.
pub(crate) struct UpdateTask<'a> {
    pub(crate) model: &'a Model,
    pub(crate) weights: &'a TrainedWeights,
    pub(crate) optimizer_state: &'a OptimizerState<f32>,
    /// The local teacher's weights; none = the base model.
    pub(crate) teacher: Option<&'a TrainedWeights>,
    /// The teacher at an endpoint, if configured.
    pub(crate) remote_teacher: Option<&'a dyn RemoteTeacher>,
    pub(crate) chosen: &'a [BatchSample],
    /// Version of the adapter that the update starts from.
    pub(crate) active: u64,
    pub(crate) options: &'a TrainingOptions,
    /// Replaces the native loss.
    pub(crate) component: Option<StepComponent<'a, LossComponent>>,
    /// Seed of the sample order when there are several minibatches.
    pub(crate) seed: u64,
    /// Set when the server shuts down.
    pub(crate) stop: &'a AtomicBool,
}

/// Result of an update.
#[derive(Debug)]
pub(crate) struct UpdateOutput {
    pub(crate) weights: TrainedWeights,
    pub(crate) optimizer_state: OptimizerState<f32>,
    /// Reply log-probs of each sample before the update.
    pub(crate) before: Vec<Vec<f32>>,
    pub(crate) report: UpdateReport,
}

/// Why an update failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("stopped")]
    Stopped,
    #[error("{what} is not finite")]
    NotFinite { what: &'static str },
    #[error("the loss component gave no result: {0}")]
    Component(#[from] Fault),
    #[error("the teacher is unavailable: {0}")]
    Teacher(String),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    Loss(#[from] LossError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Runs all optimizer updates of one step.
pub(crate) fn update(task: &UpdateTask<'_>) -> Result<UpdateOutput, UpdateError> {
    let mut inputs: Vec<ModelInput> = task.chosen.iter().map(ModelInput::from_sample).collect();
    let started = Instant::now();
    let reference = logprobs(task.score(None, &inputs, None)?);
    let reference_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let minibatches = task.options.minibatches.min(inputs.len()).max(1);
    // With several updates per epoch the old log-probs must be computed before the first one; a teacher is compared with
    // them as well. With a single update the forward pass of the update provides them.
    let needs = task
        .component
        .as_ref()
        .map(|step_component| step_component.component.needs());
    let plan = ScoringPlan::new(task.options, needs);
    let before = if minibatches > 1 || plan.scores_before() {
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
    let mut before = logprobs(before);
    before.resize(inputs.len(), Vec::new());
    let teacher_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let mut run = UpdateRun {
        task,
        inputs: &inputs,
        targets: &targets,
        reference: &reference,
        weights: task.weights.clone(),
        optimizer_state: task.optimizer_state.clone(),
        gradients: task.weights.gradients(),
        loss_stats: vec![SampleLossStats::default(); inputs.len()],
        report: UpdateReport {
            reference_seconds,
            teacher_seconds,
            ..UpdateReport::default()
        },
    };
    for epoch in 0..task.options.epochs {
        let order = epoch_order(inputs.len(), minibatches, task.seed, epoch);
        let mut totals = Totals::default();
        for part in split_evenly(inputs.len(), minibatches) {
            let members = order.get(part).unwrap_or_default();
            run.train_minibatch(
                members,
                epoch == 0 && !have_old_logprobs,
                &mut before,
                &mut totals,
            )?;
        }
        run.report.record_epoch(&totals, epoch, minibatches);
    }
    if task.options.teacher.from == TeacherSource::Ema && run.report.updates > 0 {
        if run.optimizer_state.ema.is_empty() {
            // The moving average starts at the weights before the first step.
            let start = task.weights.tensors();
            run.optimizer_state
                .update_ema(start.into_iter().map(|(_, v)| v), 1.0);
        }
        let updated = run.weights.tensors();
        let rate = task.options.teacher.ema_rate;
        run.optimizer_state
            .update_ema(updated.into_iter().map(|(_, v)| v), rate);
    }
    let (mut report, loss_stats) = (run.report, run.loss_stats);
    for (chosen, recomputed) in task.chosen.iter().zip(&before) {
        let sample = &chosen.sample;
        report.mismatch.add(recomputed, &sample.full_logprobs);
        if sample.adapter_version == task.active {
            report.parity_samples += 1;
            report.parity.add(recomputed, &sample.full_logprobs);
        }
    }
    report.reply_tokens = task.chosen.iter().map(|c| c.sample.token_ids.len()).sum();
    report.forced_tokens = task.chosen.iter().map(|c| c.sample.forced.len()).sum();
    report.all_tokens = inputs.iter().map(|input| input.tokens.len()).sum();
    report.update_seconds = started.elapsed().as_secs_f64();
    let after = if task.options.measure_moved && report.updates > 0 {
        logprobs(task.score(Some(&run.weights), &inputs, None)?)
    } else {
        Vec::new()
    };
    report.samples = sample_reports(task, &targets, loss_stats, &before, &after);
    Ok(UpdateOutput {
        weights: run.weights,
        optimizer_state: run.optimizer_state,
        before,
        report,
    })
}

fn logprobs(scored: Vec<SequenceScores>) -> Vec<Vec<f32>> {
    scored.into_iter().map(|scored| scored.logprobs).collect()
}

impl UpdateTask<'_> {
    pub(crate) fn check_stop(&self) -> Result<(), UpdateError> {
        if self.stop.load(Ordering::Relaxed) {
            Err(UpdateError::Stopped)
        } else {
            Ok(())
        }
    }

    /// Scores inputs under `weights` (none = the base model); with `top`, also returns the `top` most likely tokens of each
    /// position.
    pub(crate) fn score(
        &self,
        weights: Option<&TrainedWeights>,
        inputs: &[ModelInput],
        top: Option<usize>,
    ) -> Result<Vec<SequenceScores>, UpdateError> {
        let members: Vec<usize> = (0..inputs.len()).collect();
        let mut scored = Vec::with_capacity(inputs.len());
        for micro_batch in split_micro_batches(&members, inputs, self.options.pass_tokens) {
            self.check_stop()?;
            let sequences: Vec<Sequence<'_>> = sequences(&micro_batch, inputs, top);
            scored.extend(match weights {
                Some(weights) => weights.score(self.model, &sequences)?,
                None => self.model.score(None, &sequences)?,
            });
        }
        Ok(scored)
    }
}

/// The state of an update in progress.
struct UpdateRun<'a> {
    task: &'a UpdateTask<'a>,
    inputs: &'a [ModelInput],
    targets: &'a [TrainingTarget],
    reference: &'a [Vec<f32>],
    weights: TrainedWeights,
    optimizer_state: OptimizerState<f32>,
    gradients: Gradients,
    /// Loss statistics of each sample in its last epoch.
    loss_stats: Vec<SampleLossStats>,
    report: UpdateReport,
}

impl UpdateRun<'_> {
    /// Forward and backward over the micro-batches of a minibatch, then one optimizer update.
    fn train_minibatch(
        &mut self,
        members: &[usize],
        keep_before: bool,
        before: &mut [Vec<f32>],
        totals: &mut Totals,
    ) -> Result<(), UpdateError> {
        let options = self.task.options;
        let lengths: Vec<usize> = members
            .iter()
            .filter_map(|&i| self.targets.get(i))
            .map(TrainingTarget::tokens)
            .collect();
        let coefficients = options.loss.aggregation.coefficients(&lengths);
        self.gradients.clear();
        let mut done = 0;
        for micro_batch in split_micro_batches(members, self.inputs, options.pass_tokens) {
            self.task.check_stop()?;
            let sequences = sequences(&micro_batch, self.inputs, None);
            let forward = self.weights.forward_train(self.task.model, &sequences)?;
            if keep_before {
                for (&member, scored) in micro_batch.iter().zip(forward.scores()) {
                    if let Some(slot) = before.get_mut(member) {
                        slot.clone_from(&scored.logprobs);
                    }
                }
            }
            let coefficients = coefficients.get(done..).unwrap_or_default();
            let losses = self.losses(
                &micro_batch,
                forward.scores(),
                before,
                coefficients,
                &lengths,
                totals,
            )?;
            let mut partials: Vec<LossGradients> = Vec::with_capacity(losses.len());
            for (((mut loss, &member), scored), coefficient) in losses
                .into_iter()
                .zip(&micro_batch)
                .zip(forward.scores())
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
                if let Some(stats) = self.loss_stats.get_mut(member) {
                    *stats = SampleLossStats::new(&loss, &d_candidates);
                }
                partials.push(LossGradients {
                    d_logprob: loss.d_logprob,
                    d_entropy: loss.d_entropy,
                    d_candidates,
                });
            }
            done += micro_batch.len();
            forward.backward(&partials, &mut self.gradients)?;
        }
        let norm = global_norm(&self.gradients.tensors);
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
        let rate = options
            .optimizer
            .schedule()
            .learning_rate(self.optimizer_state.updates + 1);
        let mut tensors = self.weights.tensors_mut();
        let mut parameters: Vec<Parameter<'_, f32>> = tensors
            .iter_mut()
            .map(|(name, values)| Parameter::from_name(name, values))
            .collect();
        options.optimizer.adamw().update(
            rate,
            clip_factor(norm, options.optimizer.clip_norm),
            &mut self.optimizer_state,
            &mut parameters,
            &self.gradients.tensors,
            available_threads(),
        )?;
        self.report.updates += 1;
        self.report.learning_rate = rate;
        Ok(())
    }

    /// The native top-k loss of a sample with its tokens and mask; none if the sample has none.
    fn topk_loss(&self, member: usize) -> Option<(&TopKLoss, &TopKTokens, &[bool])> {
        let target = self.targets.get(member)?;
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
            .filter_map(|(&member, scored)| {
                let chosen = self.task.chosen.get(member)?;
                let recomputed = before.get(member).map_or(&[][..], Vec::as_slice);
                Some(LossInput {
                    chosen,
                    target: self.targets.get(member)?,
                    scored,
                    recomputed,
                    reference: self.reference.get(member).map_or(&[][..], Vec::as_slice),
                })
            })
            .collect();
        if let Some(step_component) = &self.task.component {
            let old = self.task.options.loss.ratio;
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
        let old = member.old(options.ratio);
        // Sequence-level importance weights use only the trained tokens.
        let trained = |logprobs: &[f32]| select_trained(logprobs, &target.mask);
        let weights = options
            .importance()
            .filter(|_| !recomputed.is_empty())
            .map(|importance| importance.weights(&trained(recomputed), &trained(recorded)))
            .map(|weights| scatter_trained(weights, &target.mask, 1.0))
            .unwrap_or_default();
        let loss = options.objective().evaluate(
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
        hint: target
            .hint
            .and_then(|hint| chosen.hinted.get(hint))
            .map(|hinted| hinted.hint),
        advantage: target.advantage(),
        gap: target.gap,
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

/// Number of threads for element-wise work.
pub(crate) fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Sum over tokens of the k3 estimate of KL(`then` || `now`), from tokens sampled under `then`.
pub(crate) fn sum_kl_k3(now: &[f32], then: &[f32]) -> f64 {
    now.iter()
        .zip(then)
        .map(|(&now, &then)| f64::from(KlEstimator::K3.token(then, now).value))
        .sum()
}
