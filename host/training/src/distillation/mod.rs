//! On-policy distillation from hints: builds the training target of each sample, that is the advantage of each recorded
//! token and, for top-k methods, the inputs of a loss over each position's most likely tokens.
//!
//! The teacher scores the *recorded* tokens after a prompt that contains the hint. Tokens without a teacher value are
//! masked: they leave the loss and its denominator.

mod remote_teacher;
mod topk_loss;

use std::collections::BTreeMap;

use clawhost_plugins::Requirements;
use clawhost_policy::SequenceScores;

use crate::batch::BatchSample;
use crate::forced_tokens;
use crate::loss::count_shared_tokens;
use crate::options::{DistillationKind, HintSelection, TeacherSource, TopKSource, TrainingOptions};
use crate::packing::ModelInput;
use crate::update::{UpdateError, UpdateTask};

use remote_teacher::TeacherResult;
pub use remote_teacher::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
use topk_loss::TopKLossKind;
pub(crate) use topk_loss::{TopKLoss, TopKTokens};

/// What one sample is trained towards.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TrainingTarget {
    /// One per token of the reply; 0 for masked tokens.
    pub(crate) advantages: Vec<f32>,
    /// Which tokens train; empty = all.
    pub(crate) mask: Vec<bool>,
    /// The teacher's log-prob of each recorded token; empty without a teacher.
    pub(crate) teacher: Vec<f32>,
    /// Candidate tokens of each position for a top-k loss.
    pub(crate) topk_tokens: Option<TopKTokens>,
    /// The native loss over the candidates.
    pub(crate) topk_loss: Option<TopKLoss>,
    /// Index of the selected hint.
    pub(crate) hint: Option<usize>,
    /// Mean of lT - lo over the tokens with a teacher value.
    pub(crate) gap: Option<f64>,
    /// Why the teacher returned no scores.
    pub(crate) teacher_error: Option<String>,
}

impl TrainingTarget {
    /// Number of trained tokens.
    pub(crate) fn tokens(&self) -> usize {
        if self.mask.is_empty() {
            self.advantages.len()
        } else {
            self.mask.iter().filter(|trains| **trains).count()
        }
    }

    /// Mean advantage of the trained tokens.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn advantage(&self) -> f64 {
        let sum: f64 = self.advantages.iter().map(|a| f64::from(*a)).sum();
        sum / self.tokens().max(1) as f64
    }

    /// The target from rewards alone.
    fn from_rewards(chosen: &BatchSample, reward_advantages: Option<&[f32]>, weight: f64) -> Self {
        let length = chosen.sample.token_ids.len();
        match reward_advantages {
            Some(advantages) => Self {
                advantages: scaled(advantages.to_vec(), weight),
                ..Self::default()
            },
            // Without a reward every token is masked.
            None => Self {
                advantages: vec![0.0; length],
                mask: vec![false; length],
                ..Self::default()
            },
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "losses are computed in f32, as the parameters are"
)]
fn scaled(mut values: Vec<f32>, factor: f64) -> Vec<f32> {
    let factor = factor as f32;
    if factor != 1.0 {
        values.iter_mut().for_each(|value| *value *= factor);
    }
    values
}

/// Which scores the losses need before the update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScoringPlan {
    distillation: Option<DistillationKind>,
    /// Candidate tokens per position.
    k: usize,
    /// Whether the policy must be scored before the update with its own top-k tokens.
    needs_policy_top_k: bool,
    /// Candidate tokens that the teacher scores besides the recorded tokens.
    teacher: TeacherCandidates,
}

/// Candidate tokens that the teacher scores besides the recorded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TeacherCandidates {
    None,
    /// The teacher's top-k tokens.
    Teacher,
    /// The policy's top-k tokens.
    Policy,
}

impl ScoringPlan {
    /// The scores that the method needs, or the component that replaces its loss.
    pub(crate) fn new(options: &TrainingOptions, component: Option<Requirements>) -> Self {
        let distillation = options.method.distillation();
        let overlap = options.teacher.hint_selection(options.method) == HintSelection::Overlap;
        if let Some(needs) = component {
            let needs_topk = needs.topk || needs.teacher_topk;
            return Self {
                distillation,
                k: if needs_topk {
                    needs.k as usize
                } else {
                    options.teacher.top_k
                },
                needs_policy_top_k: needs_topk || (overlap && distillation.is_some()),
                teacher: if needs.teacher_topk {
                    TeacherCandidates::Policy
                } else {
                    TeacherCandidates::None
                },
            };
        }
        let teacher = match distillation {
            None | Some(DistillationKind::LogprobGaps) => TeacherCandidates::None,
            Some(DistillationKind::TopKDivergence)
                if options.teacher.top_k_of == TopKSource::Teacher =>
            {
                TeacherCandidates::Teacher
            }
            Some(DistillationKind::TopKDivergence | DistillationKind::TopKSelect) => {
                TeacherCandidates::Policy
            }
        };
        Self {
            distillation,
            k: options.teacher.top_k,
            needs_policy_top_k: distillation.is_some()
                && (overlap || teacher == TeacherCandidates::Policy),
            teacher,
        }
    }

    /// Whether the policy must be scored before the first update.
    pub(crate) fn scores_before(&self) -> bool {
        self.distillation.is_some() || self.needs_policy_top_k
    }

    /// How many of the policy's most likely tokens that scoring must return.
    pub(crate) fn policy_top_k(&self) -> Option<usize> {
        self.needs_policy_top_k.then_some(self.k)
    }
}

/// Scores the samples under the teacher and builds their training targets. `before` holds the policy's scores before the
/// update, empty if `plan` needs none; `reward_advantages` the token advantages of each sample with a reward.
pub(crate) fn build_training_targets(
    task: &UpdateTask<'_>,
    plan: ScoringPlan,
    before: &[SequenceScores],
    reward_advantages: &[Option<Vec<f32>>],
) -> Result<Vec<TrainingTarget>, UpdateError> {
    // `weight_rl` only applies next to a teacher.
    let weight = plan
        .distillation
        .map_or(1.0, |_| task.options.teacher.weight_rl);
    let mut targets: Vec<TrainingTarget> = task
        .chosen
        .iter()
        .zip(reward_advantages)
        .map(|(chosen, reward_advantages)| {
            TrainingTarget::from_rewards(chosen, reward_advantages.as_deref(), weight)
        })
        .collect();
    if plan.teacher != TeacherCandidates::Teacher && plan.needs_policy_top_k {
        for (target, before) in targets.iter_mut().zip(before) {
            target.topk_tokens = Some(TopKTokens {
                k: plan.k,
                ids: before.candidates.clone(),
                teacher: Vec::new(),
            });
        }
    }
    let Some(distillation) = plan.distillation else {
        return Ok(mask_forced_tokens(targets, task.chosen));
    };
    let hinted_scores = TeacherScoring { task, plan, before }.score_hinted_replies()?;
    let all = targets
        .iter_mut()
        .zip(reward_advantages)
        .zip(before)
        .zip(hinted_scores);
    for (((target, reward_advantages), before), hinted_scores) in all {
        match hinted_scores {
            Some(Ok(hinted_scores)) => target.apply_teacher_scores(
                task,
                plan,
                distillation,
                reward_advantages.as_deref(),
                before,
                hinted_scores,
            ),
            Some(Err(reason)) => target.teacher_error = Some(reason),
            None => {}
        }
        // The native loss needs candidates only for samples with teacher scores.
        if task.component.is_none() && target.topk_loss.is_none() {
            target.topk_tokens = None;
        }
    }
    Ok(mask_forced_tokens(targets, task.chosen))
}

/// Masks the tokens that a grammar forced.
fn mask_forced_tokens(
    mut targets: Vec<TrainingTarget>,
    chosen: &[BatchSample],
) -> Vec<TrainingTarget> {
    for (target, chosen) in targets.iter_mut().zip(chosen) {
        let forced = &chosen.sample.forced;
        forced_tokens::mask_out(&mut target.mask, target.advantages.len(), forced);
        forced_tokens::fill(&mut target.advantages, forced, 1, 0.0);
    }
    targets
}

impl TrainingTarget {
    /// Turns the teacher's scores into advantages or a top-k loss.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    fn apply_teacher_scores(
        &mut self,
        task: &UpdateTask<'_>,
        plan: ScoringPlan,
        distillation: DistillationKind,
        reward_advantages: Option<&[f32]>,
        before: &SequenceScores,
        hinted_scores: HintedScores,
    ) {
        let options = &task.options.teacher;
        self.hint = Some(hinted_scores.hint);
        let teacher: Vec<Option<f32>> = hinted_scores
            .scored
            .logprobs
            .iter()
            .map(|value| value.is_finite().then_some(*value))
            .collect();
        self.gap = mean_gap(&teacher, &before.logprobs);
        self.teacher = hinted_scores.scored.logprobs;
        if plan.teacher != TeacherCandidates::None {
            self.topk_tokens = Some(TopKTokens {
                k: plan.k,
                ids: hinted_scores.scored.candidates,
                teacher: hinted_scores.scored.candidate_logprobs,
            });
        }
        let kind = match distillation {
            DistillationKind::LogprobGaps => {
                let on_policy = options.on_policy_distillation();
                let gaps = on_policy.gaps(&teacher, &before.logprobs);
                let advantages = on_policy.advantages(reward_advantages, &gaps);
                self.mask = advantages.iter().map(Option::is_some).collect();
                self.advantages = advantages
                    .into_iter()
                    .map(|advantage| advantage.unwrap_or(0.0))
                    .collect();
                if self.mask.iter().all(|trains| *trains) {
                    self.mask = Vec::new();
                }
                return;
            }
            DistillationKind::TopKDivergence => TopKLossKind::Divergence(options.topk_divergence()),
            DistillationKind::TopKSelect => {
                let select = options.topk_select();
                let teacher = self.topk_tokens.as_ref().map_or(&[][..], |c| &c.teacher);
                let rows = before.candidate_logprobs.chunks(plan.k.max(1));
                let advantages = rows
                    .zip(teacher.chunks(plan.k.max(1)))
                    .flat_map(|(old, teacher)| select.advantages(old, teacher))
                    .collect();
                TopKLossKind::Select {
                    select,
                    old: before.candidate_logprobs.clone(),
                    advantages,
                }
            }
        };
        // Every position trains on the teacher's scores, with or without a reward.
        self.mask = Vec::new();
        self.topk_loss = task.component.is_none().then_some(TopKLoss {
            k: plan.k,
            kind,
            weight: options.weight_opd as f32,
        });
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
fn mean_gap(teacher: &[Option<f32>], old: &[f32]) -> Option<f64> {
    let gaps: Vec<f64> = teacher
        .iter()
        .zip(old)
        .filter_map(|(teacher, old)| Some(f64::from((*teacher)?) - f64::from(*old)))
        .collect();
    (!gaps.is_empty()).then(|| gaps.iter().sum::<f64>() / gaps.len() as f64)
}

/// The teacher's scores of one sample.
struct HintedScores {
    /// Index of the hint in the teacher's prompt.
    hint: usize,
    scored: SequenceScores,
}

/// Scores the samples of a batch under the teacher.
struct TeacherScoring<'a> {
    task: &'a UpdateTask<'a>,
    plan: ScoringPlan,
    before: &'a [SequenceScores],
}

/// Indices of a sample and of one of its hints.
type HintedReply = (usize, usize);

impl TeacherScoring<'_> {
    /// One entry per sample: none without a hint, an error message if the teacher returned no scores.
    fn score_hinted_replies(
        &self,
    ) -> Result<Vec<Option<Result<HintedScores, String>>>, UpdateError> {
        let selected = self.select_hints()?;
        let scored = self.score(&selected, self.plan.teacher)?;
        let mut hinted_scores: Vec<_> = self.task.chosen.iter().map(|_| None).collect();
        for ((sample, hint), result) in selected.into_iter().zip(scored) {
            if let Some(slot) = hinted_scores.get_mut(sample) {
                *slot = Some(result.map(|scored| HintedScores { hint, scored }));
            }
        }
        Ok(hinted_scores)
    }

    /// Selects one hint for each sample that has hints: the longest one, or with `hints = "overlap"` the one under which
    /// the teacher's top-k tokens share most with the policy's.
    fn select_hints(&self) -> Result<Vec<HintedReply>, UpdateError> {
        let options = self.task.options;
        let hints = |sample: usize| self.task.chosen.get(sample).map_or(0, |c| c.hinted.len());
        let mut selected: Vec<HintedReply> = (0..self.task.chosen.len())
            .filter(|sample| hints(*sample) > 0)
            .map(|sample| (sample, 0))
            .collect();
        if options.teacher.hint_selection(options.method) == HintSelection::Longest {
            return Ok(selected);
        }
        let candidates: Vec<HintedReply> = selected
            .iter()
            .filter(|(sample, _)| hints(*sample) > 1)
            .flat_map(|(sample, _)| (0..hints(*sample)).map(|hint| (*sample, hint)))
            .collect();
        let mut best: BTreeMap<usize, HintedReply> = BTreeMap::new();
        for ((sample, hint), result) in candidates
            .iter()
            .zip(self.score(&candidates, TeacherCandidates::Teacher)?)
        {
            // A hint without scores shares no tokens.
            let Ok(scored) = result else { continue };
            let own = self.before.get(*sample).map_or(&[][..], |b| &b.candidates);
            let shared_tokens = count_shared_tokens(own, &scored.candidates, self.plan.k);
            let best = best.entry(*sample).or_insert((shared_tokens, *hint));
            if shared_tokens > best.0 {
                *best = (shared_tokens, *hint);
            }
        }
        for (sample, hint) in &mut selected {
            *hint = best.get(sample).map_or(0, |(_, hint)| *hint);
        }
        Ok(selected)
    }

    /// Scores replies under the teacher, each after the prompt with its hint.
    fn score(
        &self,
        replies: &[HintedReply],
        candidates: TeacherCandidates,
    ) -> Result<Vec<TeacherResult>, UpdateError> {
        let mut inputs = Vec::with_capacity(replies.len());
        for (sample, hint) in replies {
            let Some(chosen) = self.task.chosen.get(*sample) else {
                continue;
            };
            let mut input = ModelInput::from_hinted_sample(chosen, *hint);
            if candidates == TeacherCandidates::Policy
                && let Some(before) = self.before.get(*sample)
            {
                input.set_candidates(before.candidates.clone(), self.plan.k);
            }
            inputs.push(input);
        }
        let top = (candidates == TeacherCandidates::Teacher).then_some(self.plan.k);
        if self.task.options.teacher.from == TeacherSource::Endpoint {
            return remote_teacher::score_replies(self.task, &inputs, top);
        }
        let scored = self.task.score(self.task.teacher, &inputs, top)?;
        Ok(scored.into_iter().map(Ok).collect())
    }
}
