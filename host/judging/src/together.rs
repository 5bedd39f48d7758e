//! Judging all choices of one request together, as soon as the last of them has ended.
//!
//! Requests of which at least two choices came whole go to the group judges when one is loaded, all others to the
//! judges of single turns. No choice waits for a next state: the others are what it is compared with, and of those
//! that the user did not go on from there never is one. Each choice trains with its own reward, also with 0, which is
//! a place among the others; a choice that may not train (cut off, empty, not accepted) is shown all the same, since
//! the others are compared with it. Where a group judge gave nothing, no choice has a verdict from it, with the reason.

use clawhost_plugins::{Trajectory, Verdict};
use serde_json::Value;

use crate::asking::{About, Zero, verdict};
use crate::docket::Docket;
use crate::evidence::Evidence;
use crate::history::trajectory;
use crate::judgement::{Bench, Judgement, Unjudged, last_reason};
use crate::samples::{Given, reward, sample};

impl About {
    fn choices(dockets: &[Docket], may_defer: bool) -> Self {
        let ids: Vec<String> = dockets.iter().map(|d| d.turn.id.to_string()).collect();
        Self {
            sample_id: ids.join("+"),
            shown: format!("turns {} together", ids.join(", ")),
            number: dockets.first().map_or(0, |docket| docket.turn.id.0),
            may_defer,
        }
    }
}

/// What a choice is judged by.
struct Choice<'a> {
    evidence: Evidence<'a>,
    trajectory: Trajectory,
    index: u32,
}

impl<'a> Choice<'a> {
    /// A choice is shown by itself: what came before stands in its prompt, which all of them share.
    fn of(bench: &Bench, docket: &'a Docket) -> Result<Self, &'static str> {
        let turn = &docket.turn;
        let completion = turn.completion.as_ref().ok_or("no reply")?;
        let evidence = Evidence::of(turn).map_err(|error| {
            tracing::warn!(turn = %turn.id, %error, "what followed cannot be read");
            "what followed cannot be read"
        })?;
        let shown = evidence.shown.clone();
        let built = trajectory(turn, completion, &[], shown, &bench.options);
        let (trajectory, index) = built.map_err(|error| {
            tracing::warn!(turn = %turn.id, %error, "the conversation cannot be read");
            "the conversation cannot be read"
        })?;
        Ok(Self {
            evidence,
            trajectory,
            index,
        })
    }
}

impl Bench {
    /// Judges the whole choices of one request; one judgement for each, in order. `may_defer` as in [`Bench::judge`].
    pub(crate) async fn judge_together(
        &self,
        dockets: &[Docket],
        may_defer: bool,
    ) -> Result<Vec<Judgement>, Unjudged> {
        let choices: Result<Vec<Choice<'_>>, &str> =
            dockets.iter().map(|d| Choice::of(self, d)).collect();
        let choices = match choices {
            Ok(choices) => choices,
            Err(why) => return Ok(dockets.iter().map(|_| Judgement::skipped(why)).collect()),
        };
        let mut judgements: Vec<Judgement> = choices
            .iter()
            .map(|choice| Judgement::of(&choice.evidence))
            .collect();
        let mut outcomes = vec![Vec::new(); choices.len()];
        let group: Vec<Trajectory> = choices.iter().map(|c| c.trajectory.clone()).collect();
        let about = About::choices(dockets, may_defer);
        let bank = self.seats.groups();
        for seat in bank.now().iter() {
            let asked = &*seat.asked;
            let given = self
                .ask(bank, seat, &about, |call| asked.score_group(call, &group))
                .await
                .map_err(|unjudged| unjudged.after(receipts_of(&judgements)))?;
            // A call about all of them is accounted for once.
            if let Some(first) = judgements.first_mut() {
                first.receipts.extend(given.receipts);
            }
            for (at, (judgement, outcomes)) in judgements.iter_mut().zip(&mut outcomes).enumerate()
            {
                let of_choice: Vec<Option<Verdict>> = given
                    .results
                    .iter()
                    .map(|result| result.as_ref()?.get(at).cloned())
                    .collect();
                let verdict = verdict(asked, &of_choice, given.fault.clone(), Zero::Ranks);
                outcomes.push(verdict.outcome.clone());
                judgement.verdicts.push(verdict);
            }
            let decided = |outcomes: &Vec<_>| self.options.combine.is_decided(outcomes);
            if outcomes.iter().all(decided) {
                break;
            }
        }
        let mut spent = receipts_of(&judgements);
        for (((docket, choice), judgement), outcomes) in dockets
            .iter()
            .zip(&choices)
            .zip(&mut judgements)
            .zip(&outcomes)
        {
            let opinion = self.options.combine.opinion(outcomes);
            judgement.opinion = Some(opinion);
            if choice.evidence.is_told() && self.takes_hints() {
                let about = About::turn(docket.turn.id, may_defer);
                let told = self
                    .hints(&about, &choice.trajectory, choice.index)
                    .await
                    .map_err(|unjudged| unjudged.after(spent.clone()))?;
                spent.extend(told.1.iter().cloned());
                judgement.hints = told.0;
                judgement.receipts.extend(told.1);
            }
            let Some(completion) = &docket.turn.completion else {
                continue;
            };
            let given = match choice.evidence.users_word {
                Some(score) => Given::ByUser(score),
                None => Given::Together(opinion),
            };
            let no_verdict = last_reason(outcomes).unwrap_or_else(|| "no judge".to_owned());
            let options = &self.options;
            match reward(
                docket,
                completion,
                given,
                &no_verdict,
                &judgement.hints,
                options,
            ) {
                Err(why) => judgement.skipped = Some(why),
                Ok(reward) => {
                    let Judgement {
                        verdicts, hints, ..
                    } = &*judgement;
                    judgement.sample = Some(sample(docket, reward, verdicts, hints, options));
                }
            }
        }
        Ok(judgements)
    }
}

fn receipts_of(judgements: &[Judgement]) -> Vec<Value> {
    let receipts = judgements.iter().flat_map(|one| &one.receipts);
    receipts.cloned().collect()
}
