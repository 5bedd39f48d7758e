//! What the operator page shows, read from the journal within bounds that do not grow with it.

use clawhost_journal::{
    Counts, Journal, JournalError, JudgingState, StepRecord, TurnHit, TurnRecord, VerdictOutcome,
    VerdictRecord,
};
use serde_json::Value;

const SESSIONS: u32 = 32;
const TURNS_OF_A_SESSION: u32 = 12;
const TURNS: usize = 24;
const STEPS: u32 = 20;

/// One reading.
pub(super) struct Overview {
    pub(super) counts: Counts,
    /// Newest first.
    pub(super) turns: Vec<ShownTurn>,
    /// Newest first.
    pub(super) steps: Vec<StepRecord>,
    /// Rewards of the last judged replies, oldest first.
    pub(super) rewards: Vec<f32>,
}

/// A turn with what is shown of it.
pub(super) struct ShownTurn {
    pub(super) turn: TurnRecord,
    pub(super) asked: String,
    pub(super) replied: String,
    pub(super) verdicts: Vec<VerdictRecord>,
}

impl Overview {
    pub(super) fn gather(journal: &Journal) -> Result<Self, JournalError> {
        let mut hits: Vec<TurnHit> = Vec::new();
        for session in journal.sessions(SESSIONS)? {
            hits.extend(journal.last_turns(&session.id, TURNS_OF_A_SESSION)?);
        }
        hits.sort_by_key(|hit| std::cmp::Reverse(hit.id));
        let mut given: Vec<VerdictRecord> = Vec::new();
        for hit in hits.iter().filter(|hit| hit.judging == JudgingState::Done) {
            given.extend(journal.verdicts(hit.id)?);
        }
        given.sort_by_key(|verdict| verdict.id);
        let rewards = given
            .iter()
            .filter_map(|verdict| match verdict.outcome {
                VerdictOutcome::Verdict { reward, .. } => Some(reward),
                VerdictOutcome::None { .. } => None,
            })
            .collect();
        let mut turns = Vec::new();
        for hit in hits.iter().take(TURNS) {
            // It may have been forgotten in between.
            if let Some(turn) = journal.turn(hit.id)? {
                turns.push(ShownTurn {
                    asked: last_words(&turn.messages),
                    replied: replied(&turn),
                    verdicts: journal.verdicts(hit.id)?,
                    turn,
                });
            }
        }
        Ok(Self {
            counts: journal.counts()?,
            steps: journal.steps(STEPS)?,
            turns,
            rewards,
        })
    }
}

/// The last message of a user in a request.
fn last_words(messages: &Value) -> String {
    messages
        .as_array()
        .into_iter()
        .flatten()
        .rev()
        .find(|message| message.get("role").and_then(Value::as_str) == Some("user"))
        .and_then(|message| message.get("content")?.as_str())
        .unwrap_or("")
        .to_owned()
}

/// The text of a reply, or the tools that it called.
fn replied(turn: &TurnRecord) -> String {
    let Some(reply) = turn.completion.as_ref().map(|completion| &completion.reply) else {
        return String::new();
    };
    let mut text = reply
        .get("content")
        .and_then(Value::as_str)
        .unwrap_or("")
        .to_owned();
    let calls = reply
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for name in calls.filter_map(|call| call.pointer("/function/name")?.as_str()) {
        text.push_str(" → ");
        text.push_str(name);
    }
    text
}
