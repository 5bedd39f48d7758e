//! The numeric part of a step: from chosen samples to a changed adapter.
//!
//! Forward passes under the parameters as they are, losses on log-probs, hand-written backward,
//! AdamW. Samples are packed into passes of bounded size; gradients add up over the passes of one
//! update. It reads no queue, writes no file, and publishes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clawhost_plugins::Fault;
use clawhost_policy::{
    Adapter, ForwardError, Gradients, Model, Partials, Scored, Sequence, Trained,
};

use crate::batch::Chosen;
use crate::component::{Asked, LossComponent, Member};
use crate::loss::{Divergence, LossError, SequenceInputs, SequenceLoss};
use crate::optimizer::{Moments, ShapeError, clip_factor, global_norm};
use crate::options::TrainingOptions;
use crate::packing::{Laid, order, passes, portions, sequences};
use crate::report::{Report, Totals};

/// What an update starts from.
pub(crate) struct Task<'a> {
    pub(crate) model: &'a Model,
    pub(crate) adapter: &'a Adapter,
    pub(crate) moments: &'a Moments<f32>,
    pub(crate) chosen: &'a [Chosen],
    /// Version of the adapter that the update starts from.
    pub(crate) active: u64,
    pub(crate) options: &'a TrainingOptions,
    /// Asked instead of the native loss.
    pub(crate) component: Option<Asked<'a, LossComponent>>,
    /// Decides the order of samples when there are several minibatches.
    pub(crate) seed: u64,
    /// Set when the server is going down.
    pub(crate) stop: &'a AtomicBool,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Updated {
    pub(crate) adapter: Adapter,
    pub(crate) moments: Moments<f32>,
    /// Log-probs of each chosen sample before the update.
    pub(crate) before: Vec<Vec<f32>>,
    pub(crate) report: Report,
}

/// Why there is no update.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("stopped")]
    Stopped,
    #[error("{what} is not finite")]
    NotFinite { what: &'static str },
    #[error("the loss component gave no result: {0}")]
    Component(#[from] Fault),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    Loss(#[from] LossError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Makes the updates of one step.
pub(crate) fn update(task: &Task<'_>) -> Result<Updated, Broken> {
    let laid: Vec<Laid> = task.chosen.iter().map(Laid::of).collect();
    let started = Instant::now();
    let reference = task.score(None, &laid)?;
    let reference_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let minibatches = task.options.minibatches.min(laid.len()).max(1);
    // With several updates per epoch, only a pass before the first one shows the old log-probs.
    let mut before = if minibatches > 1 {
        task.score(Some(task.adapter), &laid)?
    } else {
        vec![Vec::new(); laid.len()]
    };
    let mut run = Run {
        task,
        laid: &laid,
        reference: &reference,
        adapter: task.adapter.clone(),
        moments: task.moments.clone(),
        gradients: Gradients::for_adapter(task.adapter),
        report: Report {
            reference_seconds,
            ..Report::default()
        },
    };
    for epoch in 0..task.options.epochs {
        let order = order(laid.len(), minibatches, task.seed, epoch);
        let mut totals = Totals::default();
        for part in portions(laid.len(), minibatches) {
            let members = order.get(part).unwrap_or_default();
            run.minibatch(
                members,
                epoch == 0 && minibatches == 1,
                &mut before,
                &mut totals,
            )?;
        }
        run.report.take(&totals, epoch, minibatches);
    }
    let mut report = run.report;
    for (chosen, recomputed) in task.chosen.iter().zip(&before) {
        let sample = &chosen.sample;
        report.mismatch.add(recomputed, &sample.full_logprobs);
        if sample.adapter_version == task.active {
            report.parity_samples += 1;
            report.parity.add(recomputed, &sample.full_logprobs);
        }
    }
    report.reply_tokens = task.chosen.iter().map(|c| c.sample.token_ids.len()).sum();
    report.all_tokens = laid.iter().map(|l| l.tokens.len()).sum();
    report.update_seconds = started.elapsed().as_secs_f64();
    Ok(Updated {
        adapter: run.adapter,
        moments: run.moments,
        before,
        report,
    })
}

impl Task<'_> {
    fn check_stop(&self) -> Result<(), Broken> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Broken::Stopped)
        } else {
            Ok(())
        }
    }

    /// Log-probs of all samples under an adapter (none = the reference).
    fn score(&self, adapter: Option<&Adapter>, laid: &[Laid]) -> Result<Vec<Vec<f32>>, Broken> {
        let members: Vec<usize> = (0..laid.len()).collect();
        let mut logprobs = Vec::with_capacity(laid.len());
        for pass in passes(&members, laid, self.options.pass_tokens) {
            self.check_stop()?;
            let sequences: Vec<Sequence<'_>> = sequences(&pass, laid);
            let scored = self.model.score(adapter, &sequences)?;
            logprobs.extend(scored.into_iter().map(|s| s.logprobs));
        }
        Ok(logprobs)
    }
}

/// The state of an update in progress.
struct Run<'a> {
    task: &'a Task<'a>,
    laid: &'a [Laid],
    reference: &'a [Vec<f32>],
    adapter: Adapter,
    moments: Moments<f32>,
    gradients: Gradients,
    report: Report,
}

impl Run<'_> {
    /// Forward, backward and one optimizer update over some samples.
    fn minibatch(
        &mut self,
        members: &[usize],
        keep_before: bool,
        before: &mut [Vec<f32>],
        totals: &mut Totals,
    ) -> Result<(), Broken> {
        let options = self.task.options;
        let lengths: Vec<usize> = members
            .iter()
            .filter_map(|&i| self.task.chosen.get(i))
            .map(|chosen| chosen.sample.token_ids.len())
            .collect();
        let coefficients = options.loss.aggregation.coefficients(&lengths);
        self.gradients.clear();
        let mut done = 0;
        for pass in passes(members, self.laid, options.pass_tokens) {
            self.task.check_stop()?;
            let sequences = sequences(&pass, self.laid);
            let forward = self
                .task
                .model
                .forward_train(Trained::Lora(&self.adapter), &sequences)?;
            if keep_before {
                for (&member, scored) in pass.iter().zip(forward.scored()) {
                    if let Some(slot) = before.get_mut(member) {
                        slot.clone_from(&scored.logprobs);
                    }
                }
            }
            let coefficients = coefficients.get(done..).unwrap_or_default();
            let losses = self.losses(
                &pass,
                forward.scored(),
                before,
                coefficients,
                &lengths,
                totals,
            )?;
            let partials: Vec<Partials> = losses
                .into_iter()
                .map(|loss| {
                    totals.add(&loss);
                    Partials {
                        d_logprob: loss.d_logprob,
                        d_entropy: loss.d_entropy,
                        d_candidates: Vec::new(),
                    }
                })
                .collect();
            done += pass.len();
            forward.backward(&partials, &mut self.gradients)?;
        }
        let norm = global_norm(&self.gradients.tensors);
        if !norm.is_finite() {
            return Err(Broken::NotFinite {
                what: "the gradient",
            });
        }
        self.report.gradient_norm = self.report.gradient_norm.max(norm);
        if norm == 0.0 {
            // Weight decay alone would change the adapter without anything having been learned.
            return Ok(());
        }
        let rate = options.optimizer.schedule().rate(self.moments.updates + 1);
        let mut tensors = self.adapter.tensors_mut();
        let mut parameters: Vec<&mut [f32]> = tensors.iter_mut().map(|(_, v)| &mut **v).collect();
        options.optimizer.adamw().update(
            rate,
            clip_factor(norm, options.optimizer.clip_norm),
            &mut self.moments,
            &mut parameters,
            &self.gradients.tensors,
            threads(),
        )?;
        self.report.updates += 1;
        self.report.learning_rate = rate;
        Ok(())
    }

    /// The losses of one pass, by the component or by the native objective.
    fn losses(
        &self,
        pass: &[usize],
        scored: &[Scored],
        before: &[Vec<f32>],
        coefficients: &[f64],
        lengths: &[usize],
        totals: &mut Totals,
    ) -> Result<Vec<SequenceLoss<f32>>, Broken> {
        let members: Vec<Member<'_>> = pass
            .iter()
            .zip(scored)
            .filter_map(|(&member, scored)| {
                let chosen = self.task.chosen.get(member)?;
                let recomputed = before.get(member).map_or(&[][..], Vec::as_slice);
                Some(Member {
                    chosen,
                    scored,
                    recomputed,
                    reference: self.reference.get(member).map_or(&[][..], Vec::as_slice),
                })
            })
            .collect();
        if let Some(asked) = &self.task.component {
            let old = self.task.options.loss.ratio;
            let made = asked.component.evaluate(
                &members,
                old,
                lengths.iter().sum(),
                lengths.len(),
                (asked.step, asked.receipts),
            )?;
            totals.tell(
                made.metrics,
                made.losses.iter().map(|loss| loss.tokens).sum(),
            );
            return Ok(made.losses);
        }
        members
            .iter()
            .zip(coefficients)
            .map(|(member, &coefficient)| self.loss(member, coefficient))
            .collect()
    }

    fn loss(&self, member: &Member<'_>, coefficient: f64) -> Result<SequenceLoss<f32>, Broken> {
        let Member {
            chosen,
            scored,
            recomputed,
            reference,
        } = *member;
        let options = &self.task.options.loss;
        let recorded = &chosen.sample.full_logprobs;
        let old = member.old(options.ratio);
        let weights = options
            .importance()
            .map(|importance| importance.weights(recomputed, recorded))
            .unwrap_or_default();
        let advantages = chosen.per_token();
        let loss = options.objective().evaluate(
            &SequenceInputs {
                logprobs: &scored.logprobs,
                entropies: &scored.entropies,
                old,
                reference,
                weights: &weights,
                advantages: &advantages,
                mask: &[],
            },
            coefficient,
        )?;
        let partials_finite = loss
            .d_logprob
            .iter()
            .chain(&loss.d_entropy)
            .all(|d| d.is_finite());
        if !(loss.loss.is_finite() && partials_finite) {
            return Err(Broken::NotFinite { what: "the loss" });
        }
        Ok(loss)
    }
}

/// Threads of this machine, for element-wise work.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// KL from one policy to another over the same tokens, by k3, per token.
pub(crate) fn drift(now: &[f32], then: &[f32]) -> f64 {
    now.iter()
        .zip(then)
        .map(|(&now, &then)| f64::from(Divergence::K3.token(then, now).value))
        .sum()
}
