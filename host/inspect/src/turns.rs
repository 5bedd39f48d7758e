//! Explanations of turns for operators: how a turn was matched, its next state, its verdicts, whether it trained and into
//! which adapter. Read-only; texts are truncated, the export has them in full.

use clawhost_chat::AssistantMessage;
use clawhost_journal::{
    Feedback, HintOutcome, HintRecord, Journal, JournalError, JudgingState, MatchRecord,
    SampleRecord, SampleState, SessionId, SessionRecord, TurnId, TurnKind, TurnRecord, TurnState,
    VerdictOutcome, VerdictRecord,
};
use clawhost_sessions::NormalizedMessage;
use serde_json::{Value, json};

use crate::next_state::{retraction_after, retraction_json, unconfirmed_reason};
use crate::pairs::pairs_json;
use crate::preview::{message_preview, messages_json, truncated};
use crate::user_prompt::user_prompt;

/// Explains every turn of a session; `None` if the session does not exist.
///
/// # Errors
/// The journal cannot be read.
pub fn explain_session(
    journal: &Journal,
    session: &SessionId,
) -> Result<Option<Value>, JournalError> {
    let Some(record) = journal.session(session)? else {
        return Ok(None);
    };
    let turns = journal.session_turns(session)?;
    let explained_turns = turns
        .iter()
        .map(|turn| turn_json(journal, turn, &turns))
        .collect::<Result<Vec<_>, _>>()?;
    let mut explained = session_json(&record);
    explained["turns"] = explained_turns.into();
    Ok(Some(explained))
}

/// Explains one turn; `None` if the turn does not exist.
///
/// # Errors
/// The journal cannot be read.
pub fn explain_turn(journal: &Journal, turn: TurnId) -> Result<Option<Value>, JournalError> {
    let Some(turn) = journal.turn(turn)? else {
        return Ok(None);
    };
    let around = journal.session_turns(&turn.session)?;
    Ok(Some(turn_json(journal, &turn, &around)?))
}

fn session_json(session: &SessionRecord) -> Value {
    json!({
        "session": session.id,
        "name": session.name,
        "origin": session.origin,
        "key": session.key,
        "user": session.user,
        "started_ms": session.started_ms,
        "last_ms": session.last_ms,
        "ended_ms": session.ended_ms,
        "end_reason": session.end_reason,
    })
}

fn turn_json(
    journal: &Journal,
    turn: &TurnRecord,
    around: &[TurnRecord],
) -> Result<Value, JournalError> {
    let verdicts = journal.verdicts(turn.id)?;
    let hints = journal.hints(turn.id)?;
    let samples = journal.samples_of_turn(turn.id)?;
    let sample = samples.iter().max_by_key(|sample| sample.id);
    let step = sample
        .and_then(|sample| sample.step)
        .map(|step| journal.step(step))
        .transpose()?
        .flatten();
    let learned = step.as_ref().and_then(|step| step.adapter);
    let siblings: Vec<TurnId> = around
        .iter()
        .filter(|other| other.group == turn.group && other.id != turn.id)
        .map(|other| other.id)
        .collect();
    let reply = turn.completion.as_ref();
    let explanation = TurnExplanation {
        turn,
        around,
        verdicts: &verdicts,
        sample,
        learned,
    };
    let mut shown = json!({
        "turn": turn.id,
        "session": turn.session,
        "seq": turn.seq,
        "response_id": turn.response_id,
        "choice": turn.choice,
        "group": turn.group,
        "siblings": siblings,
        "parent": turn.parent,
        "kind": turn.kind,
        "state": turn.state,
        "finish": reply.map(|reply| reply.finish),
        "received_ms": turn.received_ms,
        "completed_ms": reply.map(|reply| reply.ms),
        "adapter_version": turn.adapter_version,
        "adapter_digest": turn.adapter_digest,
        "matched": match_json(&turn.matched),
        "asked": user_prompt(journal, turn)?,
        "experience": turn.experience.as_ref().map(|used| json!({"entries": used.entries, "text": used.text})),
        "reply": reply.map(|reply| message_preview(&NormalizedMessage::of_reply(&reply.reply))),
        "forced_tokens": reply.map(|reply| reply.forced.len()),
        "malformed_calls": reply.map(|reply| malformed_call_notes(&reply.reply)),
        "next_state": turn.next_state.as_deref().map(messages_json),
        "next_ms": turn.next_ms,
        "next_source": turn.next_source,
        "next_doubt": unconfirmed_reason(turn, around),
        "retractions": turn.retractions.iter().map(retraction_json).collect::<Vec<_>>(),
        "judging": turn.judging,
        "feedback": turn.feedback.iter().map(feedback_json).collect::<Vec<_>>(),
        "verdicts": verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
        "hints": hints.iter().map(hint_json).collect::<Vec<_>>(),
        "sample": sample.map(sample_summary_json),
        "step": step.as_ref().map(|step| json!({"step": step.id, "outcome": step.outcome, "reason": step.reason, "adapter_version": step.adapter})),
        "pairs": pairs_json(journal, turn.id)?,
        "trained": explanation.trained(),
        "why": explanation.why(),
    });
    if let Some(owner) = &turn.owner {
        shown["owner"] = json!(owner);
    }
    Ok(shown)
}

/// The data for the summary sentence of a turn.
struct TurnExplanation<'a> {
    turn: &'a TurnRecord,
    around: &'a [TurnRecord],
    verdicts: &'a [VerdictRecord],
    sample: Option<&'a SampleRecord>,
    learned: Option<u64>,
}

impl TurnExplanation<'_> {
    fn trained(&self) -> bool {
        self.sample
            .is_some_and(|sample| sample.state == SampleState::Trained)
    }

    /// One sentence: how it trained, or why not (yet).
    fn why(&self) -> String {
        match (self.turn.state, self.sample) {
            (TurnState::Generating, _) => "Its reply is still being generated.".to_owned(),
            (TurnState::Aborted | TurnState::Failed, _) => {
                format!(
                    "Its reply was cut off ({}), and a partial reply never trains.",
                    self.reason("no reason recorded")
                )
            }
            (TurnState::Complete, Some(sample)) => self.why_with(sample),
            (TurnState::Complete, None) => self.why_without(),
        }
    }

    fn why_with(&self, sample: &SampleRecord) -> String {
        let step = sample
            .step
            .map_or_else(|| "a step".to_owned(), |step| format!("step {step}"));
        match sample.state {
            SampleState::Queued => match sample.reward {
                Some(reward) => {
                    format!("It waits for the next training step with reward {reward}.")
                }
                None => format!(
                    "It waits for the next training step without a reward; {} is the training signal.",
                    teacher_reads(sample)
                ),
            },
            SampleState::Dropped => {
                format!(
                    "Its sample was dropped: {}.",
                    sample.reason.as_deref().unwrap_or("no reason recorded")
                )
            }
            SampleState::Trained => {
                let advantage = match (sample.reward, sample.advantage) {
                    (None, _) => format!(" by {} alone", teacher_reads(sample)),
                    (Some(_), Some(advantage)) => format!(" with advantage {advantage:.3}"),
                    (Some(_), None) => String::new(),
                };
                let trained = match self.learned {
                    Some(version) => format!(
                        "It trained in {step}{advantage} and produced adapter version {version}."
                    ),
                    None => {
                        format!("It was part of {step}{advantage}, which published no adapter.")
                    }
                };
                match retraction_after(self.turn, sample.created_ms) {
                    Some(reason) => format!(
                        "{trained} The next state that it was judged by was retracted afterwards: {reason}."
                    ),
                    None => trained,
                }
            }
        }
    }

    fn why_without(&self) -> String {
        match self.turn.judging {
            JudgingState::Ready => "It has new evidence and waits to be judged.".to_owned(),
            JudgingState::Done => self.why_judged(),
            JudgingState::Skipped if self.turn.reason.as_deref() == Some("no-next-state") => {
                "Its session ended without a next state; feedback can still be sent.".to_owned()
            }
            JudgingState::Skipped => {
                format!("It was not judged: {}.", self.reason("no reason recorded"))
            }
            JudgingState::Waiting => self.why_waiting(),
        }
    }

    fn why_judged(&self) -> String {
        let refusals: Vec<String> = self
            .verdicts
            .iter()
            .filter_map(|verdict| match &verdict.outcome {
                VerdictOutcome::None { reason } => Some(format!("{}: {reason}", verdict.source)),
                VerdictOutcome::Verdict { .. } => None,
            })
            .collect();
        if let Some(reason) = self.turn.reason.as_deref() {
            return format!("It was judged and gave no sample: {reason}.");
        }
        if self.verdicts.is_empty() {
            return "It was judged, but no verdict is recorded.".to_owned();
        }
        if refusals.len() == self.verdicts.len() {
            return format!(
                "No judge gave a verdict ({}); a missing verdict is not a reward of 0.",
                refusals.join("; ")
            );
        }
        let refused = |verdict: &VerdictRecord| {
            matches!(
                verdict.outcome,
                VerdictOutcome::Verdict { accept: false, .. }
            )
        };
        match self.verdicts.iter().find(|verdict| refused(verdict)) {
            Some(verdict) => format!(
                "{} did not accept it for training: {}.",
                verdict.source,
                truncated(&verdict.rationale).trim_end_matches('.')
            ),
            None => "Its verdict was neutral, so there is no training signal.".to_owned(),
        }
    }

    fn why_waiting(&self) -> String {
        if self.turn.kind == TurnKind::Side {
            return "The client declared it a side turn; side turns have no next state.".to_owned();
        }
        let later = |other: &&TurnRecord| other.id > self.turn.id;
        let again = self.around.iter().filter(later).find(|other| {
            other.group == self.turn.group && other.response_id != self.turn.response_id
        });
        if let Some(again) = again {
            return format!(
                "The request was retried (turn {}), and this reply has no next state.",
                again.id
            );
        }
        let chosen = self.around.iter().find(|other| {
            other.response_id == self.turn.response_id
                && other.id != self.turn.id
                && other.next_state.is_some()
        });
        if let Some(chosen) = chosen {
            return format!(
                "The client continued another choice of this response (turn {}).",
                chosen.id
            );
        }
        let doubted = self.around.iter().filter(later).find(|other| {
            other.parent == Some(self.turn.id) && other.matched.held_messages().is_some()
        });
        match doubted {
            Some(doubted) => format!(
                "Turn {} continues it, {}.",
                doubted.id,
                doubted
                    .matched
                    .next_state
                    .as_ref()
                    .and_then(|report| report.why.as_deref())
                    .unwrap_or("held back as ambiguous; it counts when the conversation continues from there, or ends")
            ),
            None => "It has no next state yet.".to_owned(),
        }
    }

    fn reason<'b>(&'b self, unknown: &'b str) -> &'b str {
        self.turn.reason.as_deref().unwrap_or(unknown)
    }
}

/// What the teacher of a sample without a reward reads.
fn teacher_reads(sample: &SampleRecord) -> &'static str {
    match sample.hints.is_empty() {
        true => "the experience of its key",
        false => "its hint",
    }
}

/// The match for display: without digests, and with message previews.
fn match_json(matched: &MatchRecord) -> Value {
    let mut shown = json!(matched);
    shown["mark"] = json!({
        "user": matched.mark.user,
        "trace": matched.mark.trace,
        "request": matched.mark.request,
    });
    if let Some(messages) = matched.held_messages() {
        shown["next_state"]["kept_back"] = messages_json(messages);
    }
    shown
}

/// A sentence for each tool call of a reply that could not be parsed.
fn malformed_call_notes(reply: &AssistantMessage) -> Vec<String> {
    reply
        .malformed_tool_calls
        .iter()
        .map(|reason| {
            let reason = truncated(reason);
            format!("The reply tried a tool call that did not parse: {reason}")
        })
        .collect()
}

fn feedback_json(feedback: &Feedback) -> Value {
    json!({"score": feedback.score, "text": feedback.text.as_deref().map(truncated), "ms": feedback.ms})
}

fn verdict_json(verdict: &VerdictRecord) -> Value {
    let (reward, accept, reason) = match &verdict.outcome {
        VerdictOutcome::Verdict { reward, accept } => (Some(*reward), Some(*accept), None),
        VerdictOutcome::None { reason } => (None, None, Some(reason)),
    };
    json!({
        "source": verdict.source,
        "digest": verdict.digest,
        "reward": reward,
        "accept": accept,
        "no_verdict": reason,
        "votes": verdict.votes,
        "rationale": truncated(&verdict.rationale),
        "ms": verdict.ms,
    })
}

fn hint_json(hint: &HintRecord) -> Value {
    let (text, placement, confidence, reason) = match &hint.outcome {
        HintOutcome::Hint {
            text,
            placement,
            confidence,
        } => (
            Some(truncated(text)),
            Some(placement),
            Some(confidence),
            None,
        ),
        HintOutcome::None { reason } => (None, None, None, Some(reason)),
    };
    json!({
        "source": hint.source,
        "digest": hint.digest,
        "hint": text,
        "placement": placement,
        "confidence": confidence,
        "no_hint": reason,
        "said": truncated(&hint.said),
        "ms": hint.ms,
    })
}

fn sample_summary_json(sample: &SampleRecord) -> Value {
    json!({
        "sample": sample.id,
        "state": sample.state,
        "reward": sample.reward,
        "hints": sample.hints.iter().map(|hint| hint.id).collect::<Vec<_>>(),
        "by_hint_alone": sample.reward.is_none(),
        "advantage": sample.advantage,
        "baseline_key": sample.baseline_key,
        "reason": sample.reason,
        "tokens": sample.token_ids.len(),
        "forced_tokens": sample.forced.len(),
    })
}
