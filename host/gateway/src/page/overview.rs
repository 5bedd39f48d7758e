//! The data of the operator page, read from the journal with bounded queries.

use clawhost_journal::{
    Counts, Journal, JournalError, JudgingState, StepRecord, TurnRecord, TurnSummary,
    VerdictOutcome, VerdictRecord,
};
use serde_json::Value;

const SESSIONS: u32 = 32;
const TURNS_PER_SESSION: u32 = 12;
const TURNS: usize = 24;
const STEPS: u32 = 20;

/// The data of one page.
pub(super) struct Overview {
    pub(super) counts: Counts,
    /// Newest first.
    pub(super) turns: Vec<TurnRow>,
    /// Newest first.
    pub(super) steps: Vec<StepRecord>,
    /// Rewards of the last judged replies, oldest first.
    pub(super) rewards: Vec<f32>,
}

/// A row of the turn table.
pub(super) struct TurnRow {
    pub(super) turn: TurnRecord,
    pub(super) prompt: String,
    pub(super) reply: String,
    pub(super) verdicts: Vec<VerdictRecord>,
}

impl Overview {
    pub(super) fn load(journal: &Journal) -> Result<Self, JournalError> {
        let mut summaries: Vec<TurnSummary> = Vec::new();
        for session in journal.sessions(SESSIONS)? {
            summaries.extend(journal.last_turns(&session.id, TURNS_PER_SESSION)?);
        }
        summaries.sort_by_key(|summary| std::cmp::Reverse(summary.id));
        let mut verdicts: Vec<VerdictRecord> = Vec::new();
        for summary in summaries
            .iter()
            .filter(|summary| summary.judging == JudgingState::Done)
        {
            verdicts.extend(journal.verdicts(summary.id)?);
        }
        verdicts.sort_by_key(|verdict| verdict.id);
        let rewards = verdicts
            .iter()
            .filter_map(|verdict| match verdict.outcome {
                VerdictOutcome::Verdict { reward, .. } => Some(reward),
                VerdictOutcome::None { .. } => None,
            })
            .collect();
        let mut turns = Vec::new();
        for summary in summaries.iter().take(TURNS) {
            // It may have been deleted in between.
            if let Some(turn) = journal.turn(summary.id)? {
                turns.push(TurnRow {
                    prompt: last_user_message(&turn.messages),
                    reply: reply_text(&turn),
                    verdicts: journal.verdicts(summary.id)?,
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

/// The last user message of a request.
fn last_user_message(messages: &Value) -> String {
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

/// The text of a reply, followed by the names of the tools that it called.
fn reply_text(turn: &TurnRecord) -> String {
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
