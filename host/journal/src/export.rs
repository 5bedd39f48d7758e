//! Export of the journal as JSON lines.
//!
//! Conversations and verdicts have the fields of OpenClaw-RL's record and judge files under the same names, so that
//! notebooks written for those can read them, plus additional fields.

use std::io::Write;

use clawhost_chat::AssistantMessage;
use rusqlite::{Connection, Row};
use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::timestamp;
use crate::error::{DbError, JournalError};
use crate::hints;
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::{
    HintOutcome, HintRecord, TurnRecord, VerdictOutcome, VerdictRecord, VoteRecord,
};
use crate::rows;

crate::string_enum::string_enum! {
    /// The rows to export.
    Export {
        /// One line per finished turn of a conversation, side turns left out.
        Conversations = "conversations",
        /// One line per verdict.
        Verdicts = "verdicts",
        /// One line per hint extractor call.
        Hints = "hints",
        /// One line per sample, with its token data.
        Samples = "samples",
        /// One line per step.
        Steps = "steps",
        /// One line per turn of any kind and state, with all its fields.
        Turns = "turns",
    }
}

/// Decodes token ids to text.
pub type Decode<'a> = &'a dyn Fn(&[u32]) -> String;

impl Journal {
    /// Writes one JSON object per line, oldest first, from one snapshot. Returns the number of lines. Rows are
    /// streamed, so memory use does not depend on the size of the journal. `prompt_text` of a conversation is null,
    /// since the journal stores only token ids; see [`Journal::export_with`].
    ///
    /// # Errors
    /// [`JournalError::Output`] if writing to `out` fails, and database errors.
    pub fn export(&self, out: &mut dyn Write, what: Export) -> Result<u64, JournalError> {
        self.export_with(out, what, None)
    }

    /// As [`Journal::export`], with `prompt_text` decoded from the prompt's token ids by `decode`.
    ///
    /// # Errors
    /// As [`Journal::export`].
    pub fn export_with(
        &self,
        out: &mut dyn Write,
        what: Export,
        decode: Option<Decode<'_>>,
    ) -> Result<u64, JournalError> {
        let mut lines = Lines { out, written: 0 };
        self.read(|conn| match what {
            Export::Conversations => rows::for_each_turn(
                conn,
                "WHERE t.state = 'complete' AND t.kind <> 'side' ORDER BY t.id",
                [],
                |turn| {
                    let name = rows::session_name(conn, &turn.session)?;
                    lines.write(&conversation_line(&turn, name, decode))
                },
            ),
            Export::Turns => {
                rows::for_each_turn(conn, "ORDER BY t.id", [], |turn| lines.write(&turn))
            }
            Export::Verdicts => for_each_turn_row(conn, "verdicts", |row, session, seq| {
                lines.write(&verdict_line(
                    (row.get("id")?, TurnId(row.get("turn")?)),
                    &rows::verdict(row)?,
                    session,
                    seq,
                ))
            }),
            Export::Hints => for_each_turn_row(conn, "hints", |row, session, seq| {
                lines.write(&hint_line(&hints::hint_row(row)?, session, seq))
            }),
            Export::Samples => {
                rows::for_each_sample(conn, "ORDER BY s.id", [], |sample| lines.write(&sample))
            }
            Export::Steps => {
                rows::for_each_step(conn, "ORDER BY id", [], |step| lines.write(&step))
            }
        })?;
        lines.out.flush().map_err(JournalError::Output)?;
        Ok(lines.written)
    }
}

struct Lines<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Lines<'_> {
    fn write(&mut self, line: &impl Serialize) -> Result<(), DbError> {
        let mut text =
            serde_json::to_vec(line).map_err(|error| DbError::invalid(error.to_string()))?;
        text.push(b'\n');
        self.out.write_all(&text).map_err(JournalError::Output)?;
        self.written += 1;
        Ok(())
    }
}

/// Visits every row of a table that refers to turns, oldest first, with the session and `seq` of its turn.
fn for_each_turn_row(
    conn: &Connection,
    table: &str,
    mut show: impl FnMut(&Row<'_>, String, u32) -> Result<(), DbError>,
) -> Result<(), DbError> {
    let mut statement = conn.prepare_cached(&format!(
        "SELECT x.*, t.session, t.seq FROM {table} x JOIN turns t ON t.id = x.turn ORDER BY x.id"
    ))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        show(row, row.get("session")?, row.get("seq")?)?;
    }
    Ok(())
}

/// A line of OpenClaw-RL's record file. Its turns are numbered from 1, and its `next_state` is the last message only.
fn conversation_line(
    turn: &TurnRecord,
    session_name: Option<String>,
    decode: Option<Decode<'_>>,
) -> Value {
    let reply = turn.completion.as_ref().map(|completion| &completion.reply);
    let ended_ms = turn
        .completion
        .as_ref()
        .map_or(turn.received_ms, |completion| completion.ms);
    json!({
        "session_id": turn.session,
        "turn": turn.seq + 1,
        "timestamp": timestamp(ended_ms),
        "messages": turn.messages,
        "prompt_text": decode.map(|decode| decode(&turn.prompt_ids)),
        "response_text": reply.map(AssistantMessage::text).unwrap_or_default(),
        "tool_calls": reply.map(|reply| &reply.tool_calls).filter(|calls| !calls.is_empty()),
        "malformed_tool_calls": reply
            .map(|reply| &reply.malformed_tool_calls)
            .filter(|calls| !calls.is_empty()),
        "next_state": turn.next_state.as_ref().and_then(|messages| messages.last()),
        "next_messages": turn.next_state,
        "session_name": session_name,
        "turn_id": turn.id,
        "response_id": turn.response_id,
        "choice": turn.choice,
        "group": turn.group,
        "parent": turn.parent,
        "kind": turn.kind,
        "timestamp_ms": ended_ms,
        "finish": turn.completion.as_ref().map(|completion| completion.finish),
        "model": turn.model,
        "adapter_version": turn.adapter_version,
        "adapter_digest": turn.adapter_digest,
        "judging": turn.judging,
        "reason": turn.reason,
        "feedback": turn.feedback,
    })
}

/// A line of OpenClaw-RL's judge file. Without a verdict, `score` is null, never 0.
fn verdict_line(
    (id, turn): (i64, TurnId),
    verdict: &VerdictRecord,
    session: String,
    seq: u32,
) -> Value {
    let (score, accepted, reason) = match &verdict.outcome {
        VerdictOutcome::Verdict { reward, accept } => (Some(*reward), *accept, None),
        VerdictOutcome::None { reason } => (None, false, Some(reason)),
    };
    let mut line = json!({
        "session_id": session,
        "turn": seq + 1,
        "score": score,
        "votes": simple_votes(&verdict.votes),
        "accepted": accepted,
        "reason": reason,
        "verdict_id": id,
        "turn_id": turn,
        "source": verdict.source,
        "digest": verdict.digest,
        "rationale": verdict.rationale,
        "vote_details": verdict.votes,
        "metrics": verdict.metrics,
        "timestamp": timestamp(verdict.ms),
        "timestamp_ms": verdict.ms,
    });
    if let Some(fields) = line.as_object_mut()
        && score.is_some_and(|score| score != 0.0)
    {
        fields.insert("representative_eval".to_owned(), json!(verdict.rationale));
    }
    line
}

/// A line with a hint, or the reason why there is none.
fn hint_line(hint: &HintRecord, session: String, seq: u32) -> Value {
    let (text, placement, confidence, reason) = match &hint.outcome {
        HintOutcome::Hint {
            text,
            placement,
            confidence,
        } => (Some(text), Some(placement), Some(confidence), None),
        HintOutcome::None { reason } => (None, None, None, Some(reason)),
    };
    json!({
        "session_id": session,
        "turn": seq + 1,
        "hint": text,
        "placement": placement,
        "confidence": confidence,
        "reason": reason,
        "hint_id": hint.id,
        "turn_id": hint.turn,
        "source": hint.source,
        "digest": hint.digest,
        "said": hint.said,
        "metrics": hint.metrics,
        "timestamp": timestamp(hint.ms),
        "timestamp_ms": hint.ms,
    })
}

/// Votes in the format of the judge file: numbers, and "fail" for a missing vote.
fn simple_votes(votes: &[Option<VoteRecord>]) -> Vec<Value> {
    let plain = |vote: &Option<VoteRecord>| match vote {
        Some(vote) => json!(vote.score),
        None => json!("fail"),
    };
    votes.iter().map(plain).collect()
}
