//! Judges all choices of one request together, as soon as the last of them completes.
//!
//! Requests with at least two complete choices go to the group judges when one is loaded; all others go to the
//! single-turn judges. Choices do not wait for a next state: they are compared with each other, and the choices that
//! the user does not continue from never get one. Each choice trains with its own reward, including 0, which is a rank
//! and not a neutral verdict. Choices that cannot train (truncated, empty, not accepted) are still shown to the judges,
//! because the others are compared with them. When a group judge returns nothing, no choice gets a verdict from it, and
//! the reason is recorded.

use clawhost_plugins::{Trajectory, Verdict};
use serde_json::Value;

use crate::calls::{CallTarget, ZeroReward, combine_attempts};
use crate::context::TurnContext;
use crate::evidence::Evidence;
use crate::judgement::{Judgement, last_reason};
use crate::panel::{JudgeError, JudgePanel};
use crate::samples::{build_sample, training_reward};
use crate::trajectory::build_trajectory;
use crate::votes::{CombineVerdicts, CombinedVerdict};

impl CallTarget {
    fn group(turns: &[TurnContext], may_defer: bool) -> Self {
        let ids: Vec<String> = turns.iter().map(|c| c.turn.id.to_string()).collect();
        Self {
            sample_id: ids.join("+"),
            label: format!("turns {} together", ids.join(", ")),
            seed_index: turns.first().map_or(0, |context| context.turn.id.0),
            may_defer,
        }
    }
}

/// One choice with its evidence and its trajectory.
struct Choice<'a> {
    evidence: Evidence<'a>,
    trajectory: Trajectory,
    index: u32,
}

impl<'a> Choice<'a> {
    /// Builds a trajectory of the single turn: earlier turns are part of the prompt, which all choices share.
    fn new(panel: &JudgePanel, context: &'a TurnContext) -> Result<Self, &'static str> {
        let turn = &context.turn;
        let completion = turn.completion.as_ref().ok_or("no reply")?;
        let evidence = Evidence::from_turn(turn);
        let messages = evidence.messages.clone();
        let (trajectory, index) = build_trajectory(turn, completion, &[], messages, &panel.options);
        Ok(Self {
            evidence,
            trajectory,
            index,
        })
    }
}

impl JudgePanel {
    /// Makes the calls for the choices of one request in the task of the caller and decides; see
    /// [`JudgePanel::judge_group`].
    pub(crate) async fn call_for_group(
        &self,
        turns: &[TurnContext],
        may_defer: bool,
    ) -> Result<Vec<Judgement>, JudgeError> {
        let choices: Result<Vec<Choice<'_>>, &str> = turns
            .iter()
            .map(|context| Choice::new(self, context))
            .collect();
        let choices = match choices {
            Ok(choices) => choices,
            Err(why) => return Ok(turns.iter().map(|_| Judgement::skip(why)).collect()),
        };
        let mut judgements: Vec<Judgement> = choices
            .iter()
            .map(|choice| Judgement::from_user_scores(&choice.evidence))
            .collect();
        let mut outcomes = vec![Vec::new(); choices.len()];
        let group: Vec<Trajectory> = choices.iter().map(|c| c.trajectory.clone()).collect();
        let target = CallTarget::group(turns, may_defer);
        let slots = self.slots.groups();
        for slot in slots.snapshot().iter() {
            let component = &*slot.component;
            let attempts = self
                .call_slot(slots, slot, &target, |call| {
                    component.score_group(call, &group)
                })
                .await
                .map_err(|error| error.with_earlier_receipts(all_receipts(&judgements)))?;
            // One call covers all choices, so its receipt is recorded once, with the first.
            if let Some(first) = judgements.first_mut() {
                first.receipts.extend(attempts.receipts);
            }
            for (index, (judgement, outcomes)) in
                judgements.iter_mut().zip(&mut outcomes).enumerate()
            {
                let choice_verdicts: Vec<Option<Verdict>> = attempts
                    .results
                    .iter()
                    .map(|result| result.as_ref()?.get(index).cloned())
                    .collect();
                let verdict = combine_attempts(
                    component,
                    &choice_verdicts,
                    attempts.fault.clone(),
                    ZeroReward::Rank,
                );
                outcomes.push(verdict.outcome.clone());
                judgement.verdicts.push(verdict);
            }
            let decided = |outcomes: &Vec<_>| self.options.aggregation.is_decided(outcomes);
            if outcomes.iter().all(decided) {
                break;
            }
        }
        let mut spent = all_receipts(&judgements);
        for (((context, choice), judgement), outcomes) in turns
            .iter()
            .zip(&choices)
            .zip(&mut judgements)
            .zip(&outcomes)
        {
            let combined = self.options.aggregation.apply(outcomes);
            judgement.combined = Some(combined);
            if choice.evidence.has_new_followup() && self.has_hint_extractors() {
                let target = CallTarget::turn(context.turn.id, may_defer);
                let (hints, receipts) = self
                    .extract_hints(&target, &choice.trajectory, choice.index)
                    .await
                    .map_err(|error| error.with_earlier_receipts(spent.clone()))?;
                spent.extend(receipts.iter().cloned());
                judgement.hints = hints;
                judgement.receipts.extend(receipts);
            }
            let Some(completion) = &context.turn.completion else {
                continue;
            };
            let scored = choice.evidence.user_score.map(CombinedVerdict::of_user);
            let no_verdict = last_reason(outcomes).unwrap_or_else(|| "no judge".to_owned());
            let options = &self.options;
            let reward = training_reward(
                context,
                completion,
                scored.unwrap_or(combined),
                scored.is_none(),
                &no_verdict,
                &judgement.hints,
                options,
            );
            let target = CallTarget::turn(context.turn.id, may_defer);
            let known = judgement.receipts.len();
            let reward = self
                .filter_turn(
                    &target,
                    (&choice.trajectory, choice.index),
                    reward,
                    judgement,
                )
                .await
                .map_err(|error| error.with_earlier_receipts(spent.clone()))?;
            spent.extend(judgement.receipts.iter().skip(known).cloned());
            match reward {
                Err(why) => judgement.skip_reason = Some(why),
                Ok(reward) => {
                    let Judgement {
                        verdicts, hints, ..
                    } = &*judgement;
                    judgement.sample =
                        Some(build_sample(context, reward, verdicts, hints, options));
                }
            }
        }
        Ok(judgements)
    }
}

fn all_receipts(judgements: &[Judgement]) -> Vec<Value> {
    let receipts = judgements.iter().flat_map(|one| &one.receipts);
    receipts.cloned().collect()
}
