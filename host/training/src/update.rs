//! The numeric part of a step: from chosen samples to changed parameters, of an adapter or of a whole model.
//!
//! Forward passes under the parameters as they are, losses on log-probs, hand-written backward,
//! AdamW. Samples are packed into passes of bounded size; gradients add up over the passes of one
//! update. It reads no queue, writes no file, and publishes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clawhost_plugins::Fault;
use clawhost_policy::{ForwardError, Gradients, Learned, Model, Partials, Scored, Sequence};

use crate::batch::Chosen;
use crate::component::{Asked, LossComponent, Member};
use crate::forced::{kept, spread};
use crate::loss::{Divergence, LossError, SequenceInputs, SequenceLoss};
use crate::optimizer::{Moments, Parameter, ShapeError, clip_factor, global_norm};
use crate::options::{TeacherFrom, TrainingOptions};
use crate::packing::{Laid, order, passes, portions, sequences};
use crate::report::{Moved, Report, SampleReport, Totals};
use crate::rewarding::worths;
use crate::teaching::{Compared, Lesson, Over, Plan, Teacher, lessons};

/// What an update starts from.
pub(crate) struct Task<'a> {
    pub(crate) model: &'a Model,
    pub(crate) learned: &'a Learned,
    pub(crate) moments: &'a Moments<f32>,
    /// Whose parameters the teacher has; none = the base model's.
    pub(crate) teacher: Option<&'a Learned>,
    /// The teacher at an endpoint, where there is one.
    pub(crate) elsewhere: Option<&'a dyn Teacher>,
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
    pub(crate) learned: Learned,
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
    #[error("no teacher: {0}")]
    Teacher(String),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    Loss(#[from] LossError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Makes the updates of one step.
pub(crate) fn update(task: &Task<'_>) -> Result<Updated, Broken> {
    let mut laid: Vec<Laid> = task.chosen.iter().map(Laid::of).collect();
    let started = Instant::now();
    let reference = logprobs(task.score(None, &laid, None)?);
    let reference_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let minibatches = task.options.minibatches.min(laid.len()).max(1);
    // With several updates per epoch, only a pass before the first one shows the old log-probs; and a
    // teacher is measured against them.
    let needs = task.component.as_ref().map(|asked| asked.component.needs());
    let plan = Plan::of(task.options, needs);
    let before = if minibatches > 1 || plan.scores_before() {
        task.score(Some(task.learned), &laid, plan.top())?
    } else {
        Vec::new()
    };
    let worths = worths(task.chosen, &reference, task.options);
    let lessons = lessons(task, plan, &before, &worths)?;
    for (laid, lesson) in laid.iter_mut().zip(&lessons) {
        if let Some(compared) = &lesson.compared {
            laid.compare(compared.ids.clone(), compared.k);
        }
    }
    let known = !before.is_empty();
    let mut before = logprobs(before);
    before.resize(laid.len(), Vec::new());
    let teacher_seconds = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let mut run = Run {
        task,
        laid: &laid,
        lessons: &lessons,
        reference: &reference,
        learned: task.learned.clone(),
        moments: task.moments.clone(),
        gradients: task.learned.gradients(),
        moved: vec![Moved::default(); laid.len()],
        report: Report {
            reference_seconds,
            teacher_seconds,
            ..Report::default()
        },
    };
    for epoch in 0..task.options.epochs {
        let order = order(laid.len(), minibatches, task.seed, epoch);
        let mut totals = Totals::default();
        for part in portions(laid.len(), minibatches) {
            let members = order.get(part).unwrap_or_default();
            run.minibatch(members, epoch == 0 && !known, &mut before, &mut totals)?;
        }
        run.report.take(&totals, epoch, minibatches);
    }
    if task.options.teacher.from == TeacherFrom::Ema && run.report.updates > 0 {
        if run.moments.average.is_empty() {
            // The mean begins at what the first step started from.
            let start = task.learned.tensors();
            run.moments.follow(start.into_iter().map(|(_, v)| v), 1.0);
        }
        let made = run.learned.tensors();
        let rate = task.options.teacher.ema_rate;
        run.moments.follow(made.into_iter().map(|(_, v)| v), rate);
    }
    let (mut report, moved) = (run.report, run.moved);
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
    report.all_tokens = laid.iter().map(|l| l.tokens.len()).sum();
    report.update_seconds = started.elapsed().as_secs_f64();
    let after = if task.options.measure_moved && report.updates > 0 {
        logprobs(task.score(Some(&run.learned), &laid, None)?)
    } else {
        Vec::new()
    };
    report.samples = told(task, &lessons, moved, &before, &after);
    Ok(Updated {
        learned: run.learned,
        moments: run.moments,
        before,
        report,
    })
}

fn logprobs(scored: Vec<Scored>) -> Vec<Vec<f32>> {
    scored.into_iter().map(|scored| scored.logprobs).collect()
}

impl Task<'_> {
    pub(crate) fn check_stop(&self) -> Result<(), Broken> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Broken::Stopped)
        } else {
            Ok(())
        }
    }

    /// What is laid out, scored under what was learned (none = the base model); with `top`, also the so many likeliest
    /// tokens of each position.
    pub(crate) fn score(
        &self,
        learned: Option<&Learned>,
        laid: &[Laid],
        top: Option<usize>,
    ) -> Result<Vec<Scored>, Broken> {
        let members: Vec<usize> = (0..laid.len()).collect();
        let mut scored = Vec::with_capacity(laid.len());
        for pass in passes(&members, laid, self.options.pass_tokens) {
            self.check_stop()?;
            let sequences: Vec<Sequence<'_>> = sequences(&pass, laid, top);
            scored.extend(match learned {
                Some(learned) => learned.score(self.model, &sequences)?,
                None => self.model.score(None, &sequences)?,
            });
        }
        Ok(scored)
    }
}

/// The state of an update in progress.
struct Run<'a> {
    task: &'a Task<'a>,
    laid: &'a [Laid],
    lessons: &'a [Lesson],
    reference: &'a [Vec<f32>],
    learned: Learned,
    moments: Moments<f32>,
    gradients: Gradients,
    /// What each sample came to in the last epoch that it was part of.
    moved: Vec<Moved>,
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
            .filter_map(|&i| self.lessons.get(i))
            .map(Lesson::tokens)
            .collect();
        let coefficients = options.loss.aggregation.coefficients(&lengths);
        self.gradients.clear();
        let mut done = 0;
        for pass in passes(members, self.laid, options.pass_tokens) {
            self.task.check_stop()?;
            let sequences = sequences(&pass, self.laid, None);
            let forward = self.learned.forward_train(self.task.model, &sequences)?;
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
            let mut partials: Vec<Partials> = Vec::with_capacity(losses.len());
            for (((mut loss, &member), scored), coefficient) in losses
                .into_iter()
                .zip(&pass)
                .zip(forward.scored())
                .zip(coefficients)
            {
                let mut d_candidates = std::mem::take(&mut loss.d_candidates);
                if let Some((over, compared, mask)) = self.over(member) {
                    let now = &scored.candidate_logprobs;
                    let made = over.evaluate(compared, now, mask, *coefficient);
                    loss.loss += made.loss;
                    d_candidates = made.d_candidates;
                }
                let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
                if !(loss.loss.is_finite()
                    && finite(&loss.d_logprob)
                    && finite(&loss.d_entropy)
                    && finite(&d_candidates))
                {
                    return Err(Broken::NotFinite { what: "the loss" });
                }
                totals.add(&loss);
                if let Some(moved) = self.moved.get_mut(member) {
                    *moved = Moved::of(&loss, &d_candidates);
                }
                partials.push(Partials {
                    d_logprob: loss.d_logprob,
                    d_entropy: loss.d_entropy,
                    d_candidates,
                });
            }
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
            // Weight decay alone would change the parameters without anything having been learned.
            return Ok(());
        }
        let rate = options.optimizer.schedule().rate(self.moments.updates + 1);
        let mut tensors = self.learned.tensors_mut();
        let mut parameters: Vec<Parameter<'_, f32>> = tensors
            .iter_mut()
            .map(|(name, values)| Parameter::named(name, values))
            .collect();
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

    /// The native loss over the likeliest tokens of a sample, and which of its tokens train.
    fn over(&self, member: usize) -> Option<(&Over, &Compared, &[bool])> {
        let lesson = self.lessons.get(member)?;
        Some((
            lesson.over.as_ref()?,
            lesson.compared.as_ref()?,
            &lesson.mask,
        ))
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
                    lesson: self.lessons.get(member)?,
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
            lesson,
            scored,
            recomputed,
            reference,
        } = *member;
        let options = &self.task.options.loss;
        let recorded = &chosen.sample.full_logprobs;
        let old = member.old(options.ratio);
        // Over a sequence a weight is formed from the tokens that train.
        let of = |logprobs: &[f32]| kept(logprobs, &lesson.mask);
        let weights = options
            .importance()
            .filter(|_| !recomputed.is_empty())
            .map(|importance| importance.weights(&of(recomputed), &of(recorded)))
            .map(|weights| spread(weights, &lesson.mask, 1.0))
            .unwrap_or_default();
        let loss = options.objective().evaluate(
            &SequenceInputs {
                logprobs: &scored.logprobs,
                entropies: &scored.entropies,
                old,
                reference,
                weights: &weights,
                advantages: &lesson.advantages,
                mask: &lesson.mask,
            },
            coefficient,
        )?;
        Ok(loss)
    }
}

/// One row per sample, for those who ask later what moved what.
fn told(
    task: &Task<'_>,
    lessons: &[Lesson],
    moved: Vec<Moved>,
    before: &[Vec<f32>],
    after: &[Vec<f32>],
) -> Vec<SampleReport> {
    let sum = |logprobs: &Vec<f32>| logprobs.iter().map(|lp| f64::from(*lp)).sum::<f64>();
    let rows = task.chosen.iter().zip(lessons).zip(moved).enumerate();
    rows.map(|(i, ((chosen, lesson), moved))| SampleReport {
        sample: chosen.sample.id,
        turn: chosen.sample.turn,
        reward: chosen.sample.reward,
        hint: lesson
            .hint
            .and_then(|hint| chosen.hinted.get(hint))
            .map(|hinted| hinted.hint),
        advantage: lesson.advantage(),
        gap: lesson.gap,
        teacher_silent: lesson.silent.clone(),
        tokens: lesson.tokens(),
        loss: moved.loss,
        pull: moved.pull,
        clip_fraction: moved.clipped,
        logprob_before: before.get(i).map(sum),
        logprob_after: after.get(i).map(sum),
    })
    .collect()
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
