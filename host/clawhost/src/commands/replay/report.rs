//! The report of a replay: agreement, every changed verdict, faults, and the next batch. Contains no times, so that the
//! same replay gives identical output.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clawhost_chat::Message;
use clawhost_journal::{
    Journal, JournalError, JudgementRecord, TurnId, TurnRecord, VerdictOutcome, VerdictRecord,
};
use clawhost_judging::{CombinedVerdict, RejudgeResult};
use serde::Serialize;

use super::advantages::{NextBatch, SampleEstimate};
use crate::output::{join_or, one_line, shorten, word};

/// Maximum characters of a reply or message.
const MAX_TEXT: usize = 80;
/// Maximum characters of a rationale or error.
const MAX_RATIONALE: usize = 200;

/// Name and digest of a judge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct JudgeId {
    pub(super) name: String,
    pub(super) digest: String,
}

/// How often both sides matches the same verdict.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Agreement {
    /// Turns on which both matches a verdict.
    both: u64,
    /// Identical rewards (bit for bit) and the same acceptance.
    same: u64,
    /// Rewards of the same sign.
    same_sign: u64,
    /// Turns on which only the old side matches a verdict.
    only_old: u64,
    /// Turns on which only the new side matches a verdict.
    only_new: u64,
    /// Turns on which neither side matches a verdict.
    neither: u64,
}

/// One side of a changed verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Side {
    reward: Option<f32>,
    accept: bool,
    why: String,
}

/// A verdict that has changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ChangedVerdict {
    turn: i64,
    session: String,
    old: Side,
    new: Side,
    reply: String,
    next: String,
}

/// A judge that matches no verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct NoVerdict {
    turn: i64,
    judge: String,
    reason: String,
    said: String,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    judges: Vec<JudgeId>,
    /// None: the recorded verdicts.
    against: Option<Vec<JudgeId>>,
    /// Turns that were judged again.
    turns: u64,
    /// Turns that only have the user's score, with nothing to ask a judge.
    users_alone: u64,
    /// Choices that were recorded as judged by a group judge, without a group judge in this replay: they keep the
    /// recorded verdict.
    left_together: u64,
    agreement: Agreement,
    changed: Vec<ChangedVerdict>,
    faults: Vec<NoVerdict>,
    pub(super) next: NextBatch,
}

impl Report {
    pub(super) fn new(judges: Vec<JudgeId>, against: Option<Vec<JudgeId>>) -> Self {
        Self {
            judges,
            against,
            turns: 0,
            users_alone: 0,
            left_together: 0,
            agreement: Agreement::default(),
            changed: Vec::new(),
            faults: Vec::new(),
            next: NextBatch::default(),
        }
    }

    /// Adds a turn; `other` is the result of the judge compared with, if that is not the record.
    pub(super) fn add(&mut self, new: &RejudgeResult, other: Option<&RejudgeResult>) {
        let Some(now) = new.combined else {
            self.users_alone += 1;
            return;
        };
        self.turns += 1;
        let (then, then_verdicts) = match other {
            Some(other) => (other.combined, &other.verdicts),
            None => (new.recorded, &new.recorded_verdicts),
        };
        let then = then.unwrap_or(CombinedVerdict {
            reward: None,
            accept: true,
        });
        for verdict in &new.verdicts {
            if let VerdictOutcome::None { reason } = &verdict.outcome {
                self.faults.push(NoVerdict {
                    turn: new.turn.id.0,
                    judge: verdict.source.clone(),
                    reason: reason.clone(),
                    said: shorten(&verdict.rationale, MAX_RATIONALE),
                });
            }
        }
        if !self.agreement.count(then, now) {
            self.changed.push(ChangedVerdict {
                turn: new.turn.id.0,
                session: new.turn.session.0.clone(),
                old: side(then, then_verdicts),
                new: side(now, &new.verdicts),
                reply: shorten(&reply(&new.turn), MAX_TEXT),
                next: shorten(&next(&new.turn), MAX_TEXT),
            });
        }
    }

    /// Counts a turn that no judge could be called for.
    pub(super) fn count_skipped(
        &mut self,
        journal: &Journal,
        turn: TurnId,
    ) -> Result<(), JournalError> {
        let in_group = |judgement: &JudgementRecord| judgement.together;
        self.left_together += u64::from(journal.judgements(turn)?.iter().any(in_group));
        Ok(())
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let list = |judges: &[JudgeId]| -> String {
            let names = judges.iter().map(|judge| {
                let digest: String = judge.digest.chars().take(12).collect();
                format!("{} {digest}…", one_line(&judge.name))
            });
            names.collect::<Vec<_>>().join(", ")
        };
        let against = self.against.as_deref().map(list);
        let _ = writeln!(text, "judges       {}", list(&self.judges));
        let _ = writeln!(
            text,
            "against      {}",
            against.as_deref().unwrap_or("recorded verdicts")
        );
        let _ = writeln!(
            text,
            "turns        {} judged again; {} more only have the user's score",
            self.turns, self.users_alone
        );
        if self.left_together > 0 {
            let _ = writeln!(
                text,
                "groups       {} choices keep their recorded verdict; pass a group judge with --plugin to judge them again",
                self.left_together
            );
        }
        let agreement = &self.agreement;
        let _ = writeln!(
            text,
            "agreement    {} of {} identical, {} of the same sign; verdict only before on {}, only now on {}, never on {}",
            agreement.same,
            agreement.both,
            agreement.same_sign,
            agreement.only_old,
            agreement.only_new,
            agreement.neither
        );
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for fault in &self.faults {
            *reasons.entry(&fault.reason).or_default() += 1;
        }
        let counted: Vec<String> = reasons.iter().map(|(r, n)| format!("{n} {r}")).collect();
        let _ = writeln!(text, "no verdict   {}", join_or(&counted, ", ", "none"));
        for fault in &self.faults {
            let _ = writeln!(
                text,
                "  turn {} {}: {}",
                fault.turn, fault.judge, fault.said
            );
        }
        let _ = writeln!(text, "changed      {}", self.changed.len());
        for changed in &self.changed {
            let _ = writeln!(
                text,
                "  turn {} {} → {}\n    now    {}\n    reply  {}\n    next   {}",
                changed.turn,
                side_text(&changed.old),
                side_text(&changed.new),
                changed.new.why,
                changed.reply,
                changed.next
            );
        }
        self.batch(&mut text);
        text
    }

    fn batch(&self, text: &mut String) {
        let count = |side: fn(&super::advantages::SampleChange) -> &SampleEstimate| {
            let all = self.next.samples.iter();
            all.filter(|change| side(change).advantage.is_some())
                .count()
        };
        let estimator = match &self.next.component {
            Some(component) => one_line(component),
            None => word(&self.next.estimator),
        };
        let _ = writeln!(
            text,
            "next batch   estimator {}, {} of {} samples; with these verdicts {}",
            estimator,
            count(|change| &change.old),
            self.next.batch,
            count(|change| &change.new)
        );
        for change in self.next.samples.iter().filter(|c| c.old != c.new) {
            let _ = writeln!(
                text,
                "  sample {} of turn {}: {} → {}",
                change.sample,
                change.turn,
                estimate_text(&change.old),
                estimate_text(&change.new)
            );
        }
    }
}

impl Agreement {
    /// Counts a turn and returns whether both sides agree.
    fn count(&mut self, then: CombinedVerdict, now: CombinedVerdict) -> bool {
        match (then.reward, now.reward) {
            (Some(old), Some(new)) => {
                self.both += 1;
                let sign = |reward: f32| reward.partial_cmp(&0.0);
                self.same_sign += u64::from(sign(old) == sign(new));
                let same = old == new && then.accept == now.accept;
                self.same += u64::from(same);
                same
            }
            (Some(_), None) => {
                self.only_old += 1;
                false
            }
            (None, Some(_)) => {
                self.only_new += 1;
                false
            }
            (None, None) => {
                self.neither += 1;
                true
            }
        }
    }
}

/// The explanation of one side: the first verdict that matches the combined one, else the first one.
fn side(combined: CombinedVerdict, verdicts: &[VerdictRecord]) -> Side {
    let matches = |verdict: &&VerdictRecord| match &verdict.outcome {
        VerdictOutcome::Verdict { reward, .. } => Some(*reward) == combined.reward,
        VerdictOutcome::None { .. } => combined.reward.is_none(),
    };
    let verdict = verdicts.iter().find(matches).or(verdicts.first());
    Side {
        reward: combined.reward,
        accept: combined.accept,
        why: verdict.map_or_else(
            || "no judge".to_owned(),
            |verdict| shorten(&verdict.rationale, MAX_RATIONALE),
        ),
    }
}

fn side_text(side: &Side) -> String {
    let reward = match side.reward {
        Some(reward) => format!("{reward:+}"),
        None => "none".to_owned(),
    };
    if side.accept {
        reward
    } else {
        format!("{reward} (not accepted)")
    }
}

fn estimate_text(estimate: &SampleEstimate) -> String {
    let why = estimate.why.as_deref().map(one_line).unwrap_or_default();
    match (estimate.reward, estimate.advantage) {
        (Some(reward), Some(advantage)) => format!("reward {reward:+} advantage {advantage:+.6}"),
        (Some(reward), None) => format!("reward {reward:+} not in the batch ({why})"),
        (None, _) => format!("no sample ({why})"),
    }
}

/// The text of the reply, or its tool calls.
fn reply(turn: &TurnRecord) -> String {
    let Some(done) = &turn.completion else {
        return String::new();
    };
    let (text, calls) = (done.reply.text(), &done.reply.tool_calls);
    if text.trim().is_empty() && !calls.is_empty() {
        return serde_json::json!(calls).to_string();
    }
    text
}

/// The text of the next state: the newest message, else the user's newest feedback.
fn next(turn: &TurnRecord) -> String {
    let last = turn.next_state.as_deref().and_then(<[Message]>::last);
    let feedback = turn.feedback.iter().rev().find_map(|f| f.text.clone());
    last.map(Message::text).or(feedback).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(reward: Option<f32>, accept: bool) -> CombinedVerdict {
        CombinedVerdict { reward, accept }
    }

    #[test]
    fn agreement_counts_turns_by_verdict() {
        let mut agreement = Agreement::default();
        let plus = combined(Some(1.0), true);
        assert!(agreement.count(plus, plus));
        assert!(!agreement.count(plus, combined(Some(0.5), true)));
        assert!(!agreement.count(plus, combined(Some(1.0), false)));
        assert!(!agreement.count(plus, combined(None, true)));
        assert!(!agreement.count(combined(None, true), plus));
        assert!(agreement.count(combined(None, true), combined(None, true)));
        let expected = Agreement {
            both: 3,
            same: 1,
            same_sign: 3,
            only_old: 1,
            only_new: 1,
            neither: 1,
        };
        assert_eq!(agreement, expected);
    }
}
