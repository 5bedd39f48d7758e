//! Judges one turn: calls the judges, combines their verdicts and decides whether the turn becomes a sample. Nothing is
//! written here.
//!
//! A choice that was judged together with the other choices of its request is not sent to the single-turn judges for
//! its next state, so that one reply is never trained with two different rewards. Feedback text from the user is new
//! evidence and goes to the single-turn judges as for any turn. A user score always wins over the judges.

use clawhost_config::ExperienceOptions;
use clawhost_journal::{
    EvidenceSnapshot, JudgementOutcome, NewHint, NewJudgement, NewSample, PluginMetrics, TurnId,
    TurnRecord, VerdictOutcome, VerdictRecord,
};
use clawhost_plugins::Trajectory;
use serde_json::Value;

use crate::calls::{CallTarget, ZeroReward, combine_attempts};
use crate::context::TurnContext;
use crate::evidence::{Evidence, USER};
use crate::hints::new_experience;
use crate::panel::{JudgeError, JudgePanel};
use crate::samples::{TRUNCATED, build_sample, training_reward};
use crate::trajectory::build_trajectory;
use crate::votes::CombineVerdicts;
use crate::votes::CombinedVerdict;

/// The result of judging one turn, ready to be recorded.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) verdicts: Vec<VerdictRecord>,
    /// The combined verdict of the judges; none when they were not called.
    pub(crate) combined: Option<CombinedVerdict>,
    pub(crate) sample: Option<NewSample>,
    /// Why there is no sample, if there is none.
    pub(crate) skip_reason: Option<String>,
    /// An earlier judgement decided the outcome; its sample stays. If there was none, `skip_reason` says why.
    pub(crate) keeps_previous: bool,
    pub(crate) hints: Vec<NewHint>,
    pub(crate) receipts: Vec<Value>,
    /// The filter that keeps the turn out of training, if one does.
    pub(crate) objection: Option<Objection>,
}

/// A filter's objection to a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Objection {
    /// The filter, in words that are the same for all its objections, so that they can be counted.
    pub(crate) source: String,
    /// Why.
    pub(crate) detail: String,
}

impl Objection {
    /// The skip reason of the turn.
    pub(crate) fn skip_reason(&self) -> String {
        format!("{}: {}", self.source, self.detail)
    }
}

impl CallTarget {
    pub(crate) fn turn(turn: TurnId, may_defer: bool) -> Self {
        Self {
            sample_id: turn.to_string(),
            label: format!("turn {turn}"),
            seed_index: turn.0,
            may_defer,
        }
    }
}

impl JudgePanel {
    /// Makes the calls for one turn in the task of the caller and decides; see [`JudgePanel::judge_turn`].
    pub(crate) async fn call_for_turn(
        &self,
        context: &TurnContext,
        may_defer: bool,
    ) -> Result<Judgement, JudgeError> {
        let turn = &context.turn;
        let Some(completion) = &turn.completion else {
            return Ok(Judgement::skip("no reply"));
        };
        let evidence = Evidence::from_turn(turn);
        let mut judgement = Judgement::from_user_scores(&evidence);
        let judges = evidence.needs_judges(context.group_outcomes.is_some());
        let extracts = evidence.has_new_followup() && self.has_hint_extractors();
        let mut no_verdict = "no judge".to_owned();
        let target = CallTarget::turn(turn.id, may_defer);
        let mut shown = None;
        if judges || extracts || self.has_filters() {
            let messages = evidence.messages.clone();
            let (trajectory, index) = &*shown.insert(build_trajectory(
                turn,
                completion,
                &context.earlier,
                messages,
                &self.options,
            ));
            let index = *index;
            if judges {
                no_verdict = self
                    .call_judges(&target, trajectory, index, &mut judgement)
                    .await?
                    .unwrap_or(no_verdict);
            }
            if extracts {
                let (hints, receipts) = self
                    .extract_hints(&target, trajectory, index)
                    .await
                    .map_err(|error| error.with_earlier_receipts(judgement.receipts.clone()))?;
                judgement.hints = hints;
                judgement.receipts.extend(receipts);
            }
        }
        let scored = evidence.user_score.map(CombinedVerdict::of_user);
        let mut verdict = scored.or(judgement.combined);
        let mut is_rank = false;
        if let Some(outcomes) = &context.group_outcomes
            && !judges
            && evidence.new_scores.is_empty()
        {
            judgement.keeps_previous = true;
            if verdict.is_none() {
                verdict = Some(self.options.aggregation.apply(outcomes));
                is_rank = true;
                no_verdict = last_reason(outcomes).unwrap_or(no_verdict);
            }
        }
        let options = &self.options;
        let mut reward = training_reward(
            context,
            completion,
            verdict.unwrap_or(CombinedVerdict::NONE),
            is_rank,
            &no_verdict,
            &judgement.hints,
            options,
        );
        if let Some((trajectory, index)) = &shown {
            reward = self
                .filter_turn(&target, (trajectory, *index), reward, &mut judgement)
                .await
                .map_err(|error| error.with_earlier_receipts(judgement.receipts.clone()))?;
        }
        match reward {
            Err(why) => judgement.skip_reason = Some(why),
            // The first judgement skipped a truncated reply because it had no next state yet.
            Ok(Some(_)) if judgement.keeps_previous && context.samples.is_empty() => {
                judgement.skip_reason = Some(TRUNCATED.to_owned());
            }
            Ok(Some(_)) if judgement.keeps_previous => {}
            // An existing sample stays. Without one, hints extracted from the next state may still train the turn.
            Ok(None) if judgement.keeps_previous && !context.samples.is_empty() => {}
            Ok(reward) => {
                judgement.keeps_previous = false;
                let Judgement {
                    verdicts, hints, ..
                } = &judgement;
                judgement.sample = Some(build_sample(context, reward, verdicts, hints, options));
            }
        }
        Ok(judgement)
    }

    /// Calls the judges on one turn until the combined verdict is decided. Returns the last reason for a missing
    /// verdict.
    async fn call_judges(
        &self,
        target: &CallTarget,
        trajectory: &Trajectory,
        index: u32,
        judgement: &mut Judgement,
    ) -> Result<Option<String>, JudgeError> {
        let slots = self.slots.judges();
        let mut outcomes = Vec::new();
        // A judgement uses the slots it started with, even if one is replaced meanwhile.
        for slot in slots.snapshot().iter() {
            let component = &*slot.component;
            let attempts = self
                .call_slot(slots, slot, target, |call| {
                    component.score(call, trajectory, index)
                })
                .await
                .map_err(|error| error.with_earlier_receipts(judgement.receipts.clone()))?;
            let verdict = combine_attempts(
                component,
                &attempts.results,
                attempts.fault,
                ZeroReward::Abstention,
            );
            outcomes.push(verdict.outcome.clone());
            judgement.verdicts.push(verdict);
            judgement.receipts.extend(attempts.receipts);
            if self.options.aggregation.is_decided(&outcomes) {
                break;
            }
        }
        judgement.combined = Some(self.options.aggregation.apply(&outcomes));
        Ok(last_reason(&outcomes))
    }
}

/// The reason of the last missing verdict.
pub(crate) fn last_reason(outcomes: &[VerdictOutcome]) -> Option<String> {
    outcomes.iter().rev().find_map(|outcome| match outcome {
        VerdictOutcome::None { reason } => Some(reason.clone()),
        VerdictOutcome::Verdict { .. } => None,
    })
}

impl Judgement {
    /// A judgement that starts with the user's scores.
    pub(crate) fn from_user_scores(evidence: &Evidence<'_>) -> Self {
        let verdicts = evidence
            .new_scores
            .iter()
            .map(|(feedback, score)| VerdictRecord {
                source: USER.to_owned(),
                digest: None,
                outcome: VerdictOutcome::Verdict {
                    reward: *score,
                    accept: true,
                },
                votes: Vec::new(),
                rationale: feedback.text.clone().unwrap_or_default(),
                metrics: PluginMetrics::new(),
                ms: feedback.ms,
            })
            .collect();
        Self {
            verdicts,
            ..Self::default()
        }
    }

    /// A judgement without any calls, skipped for this reason.
    pub(crate) fn skip(reason: &str) -> Self {
        Self {
            skip_reason: Some(reason.to_owned()),
            ..Self::default()
        }
    }

    /// Converts to the journal's record. `turn` is the turn as the judges saw it.
    pub(crate) fn to_record<'a>(
        &'a self,
        turn: &TurnRecord,
        experience: &ExperienceOptions,
    ) -> NewJudgement<'a> {
        NewJudgement {
            turn: EvidenceSnapshot::from(turn),
            verdicts: &self.verdicts,
            hints: &self.hints,
            // What a filter keeps out of training must not return in prompts either.
            experience: match self.objection {
                Some(_) => None,
                None => new_experience(&self.hints, experience),
            },
            receipts: &self.receipts,
            outcome: match (&self.sample, self.skip_reason.as_deref()) {
                (_, reason) if self.keeps_previous => JudgementOutcome::KeepPrevious(reason),
                (Some(sample), _) => JudgementOutcome::Sample(sample),
                (None, Some(reason)) => JudgementOutcome::Skipped(reason),
                (None, None) => JudgementOutcome::NoSample,
            },
        }
    }
}
