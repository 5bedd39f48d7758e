//! On-policy distillation from hints: builds the training target of each sample, that is the advantage of each recorded
//! token and, for top-k methods, the inputs of a loss over each position's most likely tokens.
//!
//! The teacher scores the *recorded* tokens after a prompt that contains the hint. Tokens without a teacher value are
//! masked: they leave the loss and its denominator.

mod remote_teacher;
pub(crate) mod target;
pub(crate) mod teacher;
mod topk_loss;

use std::collections::BTreeMap;

use clawhost_engine::SequenceScores;
use clawhost_plugins::Requirements;

use crate::batch_sample::BatchSample;
use crate::forced_tokens;
use crate::loss::OnPolicyDistillation;
use crate::loss::{count_shared_tokens, sum_kl};
use crate::options::topk_select;
use crate::packing::ModelInput;
use crate::update_task::{UpdateError, UpdateTask};
use clawhost_config::{
    DistillationKind, HintSelection, TeacherSource, TopKSource, TrainingOptions,
};

use remote_teacher::TeacherResult;
pub(crate) use target::TrainingTarget;
pub use teacher::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
use topk_loss::TopKLossKind;
pub(crate) use topk_loss::{TopKLoss, TopKTokens};

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
                if options.teacher.top_k_from == TopKSource::Teacher =>
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

    /// The plan of a step that trains no sample: it only scores the policy, for the metrics.
    pub(crate) fn untrained() -> Self {
        Self {
            distillation: None,
            k: 0,
            needs_policy_top_k: false,
            teacher: TeacherCandidates::None,
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
    // `reward_weight` only applies next to a teacher.
    let weight = match (task.trains_samples(), plan.distillation) {
        (false, _) => 0.0,
        (true, None) => 1.0,
        (true, Some(_)) => task.options.teacher.reward_weight,
    };
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
            Some(Ok(hinted_scores)) => apply_teacher_scores(
                target,
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

/// Turns the teacher's scores into advantages or a top-k loss.
#[allow(
    clippy::cast_possible_truncation,
    reason = "losses are computed in f32, as the parameters are"
)]
fn apply_teacher_scores(
    target: &mut TrainingTarget,
    task: &UpdateTask<'_>,
    plan: ScoringPlan,
    distillation: DistillationKind,
    reward_advantages: Option<&[f32]>,
    before: &SequenceScores,
    hinted_scores: HintedScores,
) {
    let options = &task.options.teacher;
    target.hint = Some(hinted_scores.hint);
    let teacher: Vec<Option<f32>> = hinted_scores
        .scored
        .logprobs
        .iter()
        .map(|value| value.is_finite().then_some(*value))
        .collect();
    target.gap = mean_gap(&teacher, &before.logprobs);
    target.teacher_kl = mean_kl(&teacher, &before.logprobs);
    target.teacher = hinted_scores.scored.logprobs;
    if plan.teacher != TeacherCandidates::None {
        target.topk_tokens = Some(TopKTokens {
            k: plan.k,
            ids: hinted_scores.scored.candidates,
            teacher: hinted_scores.scored.candidate_logprobs,
        });
    }
    let kind = match distillation {
        DistillationKind::LogprobGaps => {
            let on_policy = OnPolicyDistillation::from(options);
            let gaps = on_policy.gaps(&teacher, &before.logprobs);
            let advantages = on_policy.advantages(reward_advantages, &gaps);
            target.mask = advantages.iter().map(Option::is_some).collect();
            target.advantages = advantages
                .into_iter()
                .map(|advantage| advantage.unwrap_or(0.0))
                .collect();
            if target.mask.iter().all(|trains| *trains) {
                target.mask = Vec::new();
            }
            return;
        }
        DistillationKind::TopKDivergence => TopKLossKind::Divergence(options.into()),
        DistillationKind::TopKSelect => {
            let select = topk_select(options);
            let teacher = target.topk_tokens.as_ref().map_or(&[][..], |c| &c.teacher);
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
    target.mask = Vec::new();
    target.topk_loss = task.component.is_none().then_some(TopKLoss {
        k: plan.k,
        kind,
        weight: options.distillation_weight as f32,
    });
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

/// Mean of the clamped k3 estimates over the tokens with a teacher value.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
fn mean_kl(teacher: &[Option<f32>], old: &[f32]) -> Option<f64> {
    let both = teacher.iter().zip(old);
    let (teacher, old): (Vec<f32>, Vec<f32>) = both
        .filter_map(|(teacher, old)| Some(((*teacher)?, *old)))
        .unzip();
    (!old.is_empty()).then(|| sum_kl(&teacher, &old) / old.len() as f64)
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
            hinted_scores[sample] = Some(result.map(|scored| HintedScores { hint, scored }));
        }
        Ok(hinted_scores)
    }

    /// Selects one hint for each sample that has hints: the longest one, or with `hints = "overlap"` the one under which
    /// the teacher's top-k tokens share most with the policy's.
    fn select_hints(&self) -> Result<Vec<HintedReply>, UpdateError> {
        let options = self.task.options;
        let hints = |sample: usize| self.task.chosen[sample].hinted.len();
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
            let own = &self.before[*sample].candidates;
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
            let chosen = &self.task.chosen[*sample];
            let mut input = ModelInput::from_hinted_sample(chosen, *hint);
            if candidates == TeacherCandidates::Policy {
                input.set_candidates(self.before[*sample].candidates.clone(), self.plan.k);
            }
            inputs.push(input);
        }
        let top = (candidates == TeacherCandidates::Teacher).then_some(self.plan.k);
        if self.task.options.teacher.source == TeacherSource::Endpoint {
            return remote_teacher::score_replies(self.task, &inputs, top);
        }
        let scored = self.task.score(self.task.teacher, &inputs, top)?;
        Ok(scored.into_iter().map(Ok).collect())
    }
}
