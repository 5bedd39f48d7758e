//! What a replay tells: agreement, every changed verdict, faults, and the next batch. No times, so that the same
//! replay gives the same bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clawhost_journal::{
    Journal, JournalError, JudgementRecord, NewVerdict, TurnId, TurnRecord, VerdictOutcome,
};
use clawhost_judging::{Opinion, Rejudged};
use serde::Serialize;
use serde_json::Value;

use super::advantages::{NextBatch, Place};
use crate::usage::one_line;

/// Characters of a text that are shown.
const SHOWN: usize = 80;
/// Characters of a rationale or of a fault's words.
const SHOWN_WHY: usize = 200;

/// A judge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) digest: String,
}

/// How often both sides said the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Agreement {
    /// Turns on which both gave a verdict.
    both: u64,
    /// The same reward, bit for bit, and both or none accepts.
    same: u64,
    /// A reward of the same sign.
    same_sign: u64,
    /// Turns on which only the old side gave a verdict.
    only_old: u64,
    /// Turns on which only the new side gave one.
    only_new: u64,
    /// Turns on which neither did.
    neither: u64,
}

/// One side of a changed verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Side {
    reward: Option<f32>,
    accept: bool,
    why: String,
}

/// A verdict that is not what it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Changed {
    turn: i64,
    session: String,
    old: Side,
    new: Side,
    reply: String,
    next: String,
}

/// A judge that gave no verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct NoVerdict {
    turn: i64,
    judge: String,
    reason: String,
    said: String,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    judges: Vec<Named>,
    /// None: what is recorded.
    against: Option<Vec<Named>>,
    /// Turns that were judged anew.
    turns: u64,
    /// Turns about which there is nothing to ask a judge: the user's score is all.
    users_alone: u64,
    /// Choices that were judged together with others of their request, and that no group judge is there for now: they
    /// keep what is recorded.
    left_together: u64,
    agreement: Agreement,
    changed: Vec<Changed>,
    faults: Vec<NoVerdict>,
    pub(super) next: NextBatch,
}

impl Report {
    pub(super) fn new(judges: Vec<Named>, against: Option<Vec<Named>>) -> Self {
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

    /// Adds a turn; `other` is the judge compared with, where it is not the record.
    pub(super) fn add(&mut self, new: &Rejudged, other: Option<&Rejudged>) {
        let Some(now) = new.opinion else {
            self.users_alone += 1;
            return;
        };
        self.turns += 1;
        let (then, said) = match other {
            Some(other) => (other.opinion, &other.verdicts),
            None => (new.recorded, &new.recorded_verdicts),
        };
        let then = then.unwrap_or(Opinion {
            reward: None,
            accept: true,
        });
        for verdict in &new.verdicts {
            if let VerdictOutcome::None { reason } = &verdict.outcome {
                self.faults.push(NoVerdict {
                    turn: new.turn.id.0,
                    judge: verdict.source.clone(),
                    reason: reason.clone(),
                    said: cut(&verdict.rationale, SHOWN_WHY),
                });
            }
        }
        if !self.agreement.count(then, now) {
            self.changed.push(Changed {
                turn: new.turn.id.0,
                session: new.turn.session.0.clone(),
                old: side(then, said),
                new: side(now, &new.verdicts),
                reply: cut(&reply(&new.turn), SHOWN),
                next: cut(&next(&new.turn), SHOWN),
            });
        }
    }

    /// Counts a turn that nobody could be asked about.
    pub(super) fn leave(&mut self, journal: &Journal, turn: TurnId) -> Result<(), JournalError> {
        let together = |judgement: &JudgementRecord| judgement.together;
        self.left_together += u64::from(journal.judgements(turn)?.iter().any(together));
        Ok(())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let list = |judges: &[Named]| -> String {
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
            against.as_deref().unwrap_or("what is recorded")
        );
        let _ = writeln!(
            text,
            "turns        {} judged anew; {} more have the user's score alone",
            self.turns, self.users_alone
        );
        if self.left_together > 0 {
            let _ = writeln!(
                text,
                "together     {} choices keep what is recorded; give a group judge with --plugin to judge them anew",
                self.left_together
            );
        }
        let told = &self.agreement;
        let _ = writeln!(
            text,
            "agreement    {} of {} the same, {} of the same sign; a verdict only before on {}, only now on {}, never on {}",
            told.same, told.both, told.same_sign, told.only_old, told.only_new, told.neither
        );
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for fault in &self.faults {
            *reasons.entry(&fault.reason).or_default() += 1;
        }
        let counted: Vec<String> = reasons.iter().map(|(r, n)| format!("{n} {r}")).collect();
        let _ = writeln!(
            text,
            "no verdict   {}",
            if counted.is_empty() {
                "none".to_owned()
            } else {
                counted.join(", ")
            }
        );
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
                shown(&changed.old),
                shown(&changed.new),
                changed.new.why,
                changed.reply,
                changed.next
            );
        }
        self.batch(&mut text);
        text
    }

    fn batch(&self, text: &mut String) {
        let count = |side: fn(&super::advantages::Change) -> &Place| {
            let all = self.next.samples.iter();
            all.filter(|change| side(change).advantage.is_some())
                .count()
        };
        let estimator = serde_json::to_value(self.next.estimator).unwrap_or_default();
        let estimator = match &self.next.component {
            Some(component) => one_line(component),
            None => estimator.as_str().unwrap_or_default().to_owned(),
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
                place(&change.old),
                place(&change.new)
            );
        }
    }
}

impl Agreement {
    /// Counts a turn and tells whether both sides said the same.
    fn count(&mut self, then: Opinion, now: Opinion) -> bool {
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

/// The first verdict that agrees with the whole speaks for it, else the last reason for there being none.
fn side(opinion: Opinion, verdicts: &[NewVerdict]) -> Side {
    let gave = |verdict: &&NewVerdict| match &verdict.outcome {
        VerdictOutcome::Verdict { reward, .. } => Some(*reward) == opinion.reward,
        VerdictOutcome::None { .. } => opinion.reward.is_none(),
    };
    let speaker = verdicts.iter().find(gave).or(verdicts.first());
    Side {
        reward: opinion.reward,
        accept: opinion.accept,
        why: speaker.map_or_else(
            || "no judge".to_owned(),
            |verdict| cut(&verdict.rationale, SHOWN_WHY),
        ),
    }
}

fn shown(side: &Side) -> String {
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

fn place(place: &Place) -> String {
    let why = place.why.as_deref().map(one_line).unwrap_or_default();
    match (place.reward, place.advantage) {
        (Some(reward), Some(advantage)) => format!("reward {reward:+} advantage {advantage:+.6}"),
        (Some(reward), None) => format!("reward {reward:+} not in it ({why})"),
        (None, _) => format!("no sample ({why})"),
    }
}

/// The text of the reply, or the tools that it calls.
fn reply(turn: &TurnRecord) -> String {
    let Some(done) = &turn.completion else {
        return String::new();
    };
    match words(&done.reply) {
        text if !text.trim().is_empty() => text,
        _ => done
            .reply
            .get("tool_calls")
            .map(Value::to_string)
            .unwrap_or_default(),
    }
}

/// The text of what followed: the newest message, else the newest words of the user.
fn next(turn: &TurnRecord) -> String {
    let messages = turn.next_state.as_ref().and_then(Value::as_array);
    let said = turn.feedback.iter().rev().find_map(|f| f.text.clone());
    messages
        .and_then(|messages| messages.last())
        .map(words)
        .or(said)
        .unwrap_or_default()
}

/// The text of a message.
fn words(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

/// The beginning of a text on one line.
fn cut(text: &str, most: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opinion(reward: Option<f32>, accept: bool) -> Opinion {
        Opinion { reward, accept }
    }

    #[test]
    fn agreement_counts_what_both_said() {
        let mut told = Agreement::default();
        let plus = opinion(Some(1.0), true);
        assert!(told.count(plus, plus));
        assert!(!told.count(plus, opinion(Some(0.5), true)));
        assert!(!told.count(plus, opinion(Some(1.0), false)));
        assert!(!told.count(plus, opinion(None, true)));
        assert!(!told.count(opinion(None, true), plus));
        assert!(told.count(opinion(None, true), opinion(None, true)));
        let expected = Agreement {
            both: 3,
            same: 1,
            same_sign: 3,
            only_old: 1,
            only_new: 1,
            neither: 1,
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn texts_are_cut_on_one_line_and_move_no_cursor() {
        assert_eq!(cut("a\nb\u{1b}[2J", 80), "a b\\u{1b}[2J");
        assert_eq!(cut(&"ä".repeat(9), 4), "ääää…");
        assert_eq!(cut("abcd", 4), "abcd");
    }
}
