//! What the samples of a step teach: the advantage of each recorded token, and for the methods that look at a
//! position's most likely tokens what a loss over those starts from.
//!
//! The teacher scores the *recorded* tokens after a prompt that holds the hint. A token that it has no value for
//! is left out of the loss and of what the loss is divided by.

mod elsewhere;
mod over;

use std::collections::BTreeMap;

use clawhost_plugins::Requirements;
use clawhost_policy::Scored;

use crate::batch::Chosen;
use crate::forced;
use crate::loss::overlap;
use crate::options::{HintChoice, Lecture, TeacherFrom, TopkOf, TrainingOptions};
use crate::packing::Laid;
use crate::update::{Broken, Task};

use elsewhere::Said;
pub use elsewhere::{Teacher, TeacherAnswer, TeacherQuestion, TeacherSilent};
use over::OverKind;
pub(crate) use over::{Compared, Over};

/// What one sample teaches.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lesson {
    /// One for each token of the reply; 0 where it does not train.
    pub(crate) advantages: Vec<f32>,
    /// Which tokens train; empty = all.
    pub(crate) mask: Vec<bool>,
    /// What the teacher finds of each recorded token; empty without a teacher.
    pub(crate) teacher: Vec<f32>,
    /// Further tokens of each position that a loss compares on.
    pub(crate) compared: Option<Compared>,
    /// The native loss over those.
    pub(crate) over: Option<Over>,
    /// Which of the sample's hints was taken.
    pub(crate) hint: Option<usize>,
    /// Mean of lT - lo over the tokens that the teacher has a value for.
    pub(crate) gap: Option<f64>,
    /// Why a teacher that was asked has said nothing.
    pub(crate) silent: Option<String>,
}

impl Lesson {
    /// How many tokens train.
    pub(crate) fn tokens(&self) -> usize {
        if self.mask.is_empty() {
            self.advantages.len()
        } else {
            self.mask.iter().filter(|trains| **trains).count()
        }
    }

    /// Mean advantage of the tokens that train.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn advantage(&self) -> f64 {
        let sum: f64 = self.advantages.iter().map(|a| f64::from(*a)).sum();
        sum / self.tokens().max(1) as f64
    }

    /// Of rewards alone.
    fn rewarded(chosen: &Chosen, worth: Option<&[f32]>, weight: f64) -> Self {
        let length = chosen.sample.token_ids.len();
        match worth {
            Some(advantages) => Self {
                advantages: scaled(advantages.to_vec(), weight),
                ..Self::default()
            },
            // Nothing teaches here: masked whole.
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

/// What has to be scored before the losses can be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    lecture: Option<Lecture>,
    /// Tokens of each position that are looked at.
    k: usize,
    /// Whether those are the policy's own before the update, so that scoring it has to tell them.
    policys: bool,
    /// What the teacher is asked about beside the recorded tokens.
    teacher: Asked,
}

/// Tokens that the teacher is asked about beside the recorded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// Its own likeliest.
    Own,
    /// The policy's likeliest.
    Policys,
}

impl Plan {
    /// What the method needs, or the component that takes the place of its loss.
    pub(crate) fn of(options: &TrainingOptions, component: Option<Requirements>) -> Self {
        let lecture = options.method.lecture();
        let compares = options.teacher.hint_choice(options.method) == HintChoice::Overlap;
        if let Some(needs) = component {
            let looks = needs.topk || needs.teacher_topk;
            return Self {
                lecture,
                k: if looks {
                    needs.k as usize
                } else {
                    options.teacher.top_k
                },
                policys: looks || (compares && lecture.is_some()),
                teacher: if needs.teacher_topk {
                    Asked::Policys
                } else {
                    Asked::Nothing
                },
            };
        }
        let teacher = match lecture {
            None | Some(Lecture::Gaps) => Asked::Nothing,
            Some(Lecture::Distances) if options.teacher.top_k_of == TopkOf::Teacher => Asked::Own,
            Some(Lecture::Distances | Lecture::Select) => Asked::Policys,
        };
        Self {
            lecture,
            k: options.teacher.top_k,
            policys: lecture.is_some() && (compares || teacher == Asked::Policys),
            teacher,
        }
    }

    /// Whether the policy has to be scored before the first update.
    pub(crate) fn scores_before(&self) -> bool {
        self.lecture.is_some() || self.policys
    }

    /// How many of its likeliest tokens that scoring has to tell.
    pub(crate) fn top(&self) -> Option<usize> {
        self.policys.then_some(self.k)
    }
}

/// Scores what the teacher needs and says what each sample teaches. `before` is what the policy found before the
/// update, as `plan` asks for it; empty when the plan asks for nothing. `worths` is what the reward of each sample, if it
/// has one, is worth for each of its tokens.
pub(crate) fn lessons(
    task: &Task<'_>,
    plan: Plan,
    before: &[Scored],
    worths: &[Option<Vec<f32>>],
) -> Result<Vec<Lesson>, Broken> {
    // Without a teacher there is nothing to weigh rewards against.
    let weight = plan.lecture.map_or(1.0, |_| task.options.teacher.weight_rl);
    let mut lessons: Vec<Lesson> = task
        .chosen
        .iter()
        .zip(worths)
        .map(|(chosen, worth)| Lesson::rewarded(chosen, worth.as_deref(), weight))
        .collect();
    if plan.teacher != Asked::Own && plan.policys {
        for (lesson, before) in lessons.iter_mut().zip(before) {
            lesson.compared = Some(Compared {
                k: plan.k,
                ids: before.candidates.clone(),
                teacher: Vec::new(),
            });
        }
    }
    let Some(lecture) = plan.lecture else {
        return Ok(left_out(lessons, task.chosen));
    };
    let heard = Classroom { task, plan, before }.hear()?;
    let all = lessons.iter_mut().zip(worths).zip(before).zip(heard);
    for (((lesson, worth), before), heard) in all {
        match heard {
            Some(Ok(heard)) => lesson.attend(task, plan, lecture, worth.as_deref(), before, heard),
            Some(Err(reason)) => lesson.silent = Some(reason),
            None => {}
        }
        // The native loss looks at these tokens only where there is something to compare with.
        if task.component.is_none() && lesson.over.is_none() {
            lesson.compared = None;
        }
    }
    Ok(left_out(lessons, task.chosen))
}

/// The lessons without the tokens that the policy did not choose.
fn left_out(mut lessons: Vec<Lesson>, chosen: &[Chosen]) -> Vec<Lesson> {
    for (lesson, chosen) in lessons.iter_mut().zip(chosen) {
        let forced = &chosen.sample.forced;
        forced::leave_out(&mut lesson.mask, lesson.advantages.len(), forced);
        forced::set(&mut lesson.advantages, forced, 1, 0.0);
    }
    lessons
}

impl Lesson {
    /// Takes in what the teacher said.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    fn attend(
        &mut self,
        task: &Task<'_>,
        plan: Plan,
        lecture: Lecture,
        worth: Option<&[f32]>,
        before: &Scored,
        heard: Heard,
    ) {
        let options = &task.options.teacher;
        self.hint = Some(heard.hint);
        let teacher: Vec<Option<f32>> = heard
            .scored
            .logprobs
            .iter()
            .map(|value| value.is_finite().then_some(*value))
            .collect();
        self.gap = mean_gap(&teacher, &before.logprobs);
        self.teacher = heard.scored.logprobs;
        if plan.teacher != Asked::Nothing {
            self.compared = Some(Compared {
                k: plan.k,
                ids: heard.scored.candidates,
                teacher: heard.scored.candidate_logprobs,
            });
        }
        let kind = match lecture {
            Lecture::Gaps => {
                let teaching = options.teaching();
                let gaps = teaching.gaps(&teacher, &before.logprobs);
                let pulls = teaching.advantages(worth, &gaps);
                self.mask = pulls.iter().map(Option::is_some).collect();
                self.advantages = pulls.into_iter().map(|pull| pull.unwrap_or(0.0)).collect();
                if self.mask.iter().all(|trains| *trains) {
                    self.mask = Vec::new();
                }
                return;
            }
            Lecture::Distances => OverKind::Distance(options.distillation()),
            Lecture::Select => {
                let select = options.select();
                let theirs = self.compared.as_ref().map_or(&[][..], |c| &c.teacher);
                let rows = before.candidate_logprobs.chunks(plan.k.max(1));
                let advantages = rows
                    .zip(theirs.chunks(plan.k.max(1)))
                    .flat_map(|(old, teacher)| select.advantages(old, teacher))
                    .collect();
                OverKind::Select {
                    select,
                    old: before.candidate_logprobs.clone(),
                    advantages,
                }
            }
        };
        // A position with a teacher trains, whether or not its token has a reward.
        self.mask = Vec::new();
        self.over = task.component.is_none().then_some(Over {
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

/// What the teacher said of one sample.
struct Heard {
    /// Index of the hint that it read.
    hint: usize,
    scored: Scored,
}

struct Classroom<'a> {
    task: &'a Task<'a>,
    plan: Plan,
    before: &'a [Scored],
}

/// A sample and one of its hints, by their indices.
type Reading = (usize, usize);

impl Classroom<'_> {
    /// One entry per sample; none without a hint, and the reason where its teacher said nothing.
    fn hear(&self) -> Result<Vec<Option<Result<Heard, String>>>, Broken> {
        let picked = self.pick()?;
        let scored = self.score(&picked, self.plan.teacher)?;
        let mut heard: Vec<_> = self.task.chosen.iter().map(|_| None).collect();
        for ((sample, hint), said) in picked.into_iter().zip(scored) {
            if let Some(slot) = heard.get_mut(sample) {
                *slot = Some(said.map(|scored| Heard { hint, scored }));
            }
        }
        Ok(heard)
    }

    /// One reading for each sample that has hints. The longest hint comes first and is taken unless another one
    /// shares more tokens with the policy.
    fn pick(&self) -> Result<Vec<Reading>, Broken> {
        let options = self.task.options;
        let hints = |sample: usize| self.task.chosen.get(sample).map_or(0, |c| c.hinted.len());
        let mut picked: Vec<Reading> = (0..self.task.chosen.len())
            .filter(|sample| hints(*sample) > 0)
            .map(|sample| (sample, 0))
            .collect();
        if options.teacher.hint_choice(options.method) == HintChoice::Longest {
            return Ok(picked);
        }
        let rivals: Vec<Reading> = picked
            .iter()
            .filter(|(sample, _)| hints(*sample) > 1)
            .flat_map(|(sample, _)| (0..hints(*sample)).map(|hint| (*sample, hint)))
            .collect();
        let mut best: BTreeMap<usize, Reading> = BTreeMap::new();
        for ((sample, hint), said) in rivals.iter().zip(self.score(&rivals, Asked::Own)?) {
            // A hint that nobody has read agrees with nothing.
            let Ok(scored) = said else { continue };
            let own = self.before.get(*sample).map_or(&[][..], |b| &b.candidates);
            let shared = overlap(own, &scored.candidates, self.plan.k);
            let best = best.entry(*sample).or_insert((shared, *hint));
            if shared > best.0 {
                *best = (shared, *hint);
            }
        }
        for (sample, hint) in &mut picked {
            *hint = best.get(sample).map_or(0, |(_, hint)| *hint);
        }
        Ok(picked)
    }

    /// The teacher's view of some replies, each after the prompt with that hint.
    fn score(&self, readings: &[Reading], asked: Asked) -> Result<Vec<Said>, Broken> {
        let mut laid = Vec::with_capacity(readings.len());
        for (sample, hint) in readings {
            let Some(chosen) = self.task.chosen.get(*sample) else {
                continue;
            };
            let mut reply = Laid::after(chosen, *hint);
            if asked == Asked::Policys
                && let Some(before) = self.before.get(*sample)
            {
                reply.compare(before.candidates.clone(), self.plan.k);
            }
            laid.push(reply);
        }
        let top = (asked == Asked::Own).then_some(self.plan.k);
        if self.task.options.teacher.from == TeacherFrom::Endpoint {
            return elsewhere::ask(self.task, &laid, top);
        }
        let scored = self.task.score(self.task.teacher, &laid, top)?;
        Ok(scored.into_iter().map(Ok).collect())
    }
}
