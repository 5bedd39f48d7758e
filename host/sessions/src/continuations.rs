//! The requests that continue one reply. One of them contains the next state of the conversation; the others are side
//! requests, or the message was edited later.
//!
//! | evidence | conclusion |
//! |---|---|
//! | a later request has the reply to it in its history | it is part of the conversation |
//! | a later request continues the same reply although its own reply was complete | it was left out |
//! | its reply was still being generated at that time | none yet: both are held back |

use clawhost_journal::{TurnId, TurnKind, TurnRecord, TurnState, TurnSummary};
use serde_json::Value;

use crate::ambiguity;
use crate::error::SessionError;
use crate::lookup::Lookup;

/// A request that continues a reply, with its retries.
#[derive(Debug)]
pub(crate) struct Continuation {
    /// Its first turn, which a next state refers to as its source.
    pub(crate) turn: TurnId,
    /// Group of its turns.
    pub(crate) group: String,
    /// Its messages after the reply.
    pub(crate) messages: Value,
    /// Kind of its ambiguity, one of the constants of [`crate::ambiguity`].
    pub(crate) ambiguity: Option<String>,
    /// Whether a reply to it is being generated.
    pub(crate) running: bool,
    /// All of its turns.
    turns: Vec<TurnId>,
    /// The client declared it a main turn, or it has a next state.
    main: bool,
}

impl Continuation {
    /// Whether the conversation continued from it.
    pub(crate) fn is_confirmed(&self, lookup: &Lookup<'_>) -> Result<bool, SessionError> {
        if self.main {
            return Ok(true);
        }
        for turn in &self.turns {
            if lookup.is_continued(*turn)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether its own shape is ambiguous, and not only that another request runs at the same time.
    pub(crate) fn has_unusual_shape(&self) -> bool {
        self.ambiguity
            .as_deref()
            .is_some_and(|kind| kind != ambiguity::BESIDE)
    }
}

/// All requests that continue a turn and may contain its next state, newest first.
pub(crate) fn find_continuations(
    lookup: &Lookup<'_>,
    turn: &TurnRecord,
) -> Result<Vec<Continuation>, SessionError> {
    let mut found: Vec<Continuation> = Vec::new();
    for child in lookup.children(turn.id)? {
        let running = child.state == TurnState::Generating;
        let main = child.kind == TurnKind::Main;
        let messages = next_state_of_child(turn, &child);
        if let Some(known) = found
            .iter_mut()
            .find(|continuation| continuation.group == child.group)
        {
            known.turns.push(child.id);
            known.running |= running;
            known.main |= main;
            // The first turn of the group carries the decision; the others are retries or choices.
            if let Some(messages) = messages {
                known.turn = child.id;
                known.messages = messages;
                known.ambiguity = ambiguity_kind(&child.matched);
            }
            continue;
        }
        found.push(Continuation {
            turn: child.id,
            messages: messages.unwrap_or(Value::Null),
            ambiguity: ambiguity_kind(&child.matched),
            running,
            turns: vec![child.id],
            main,
            group: child.group,
        });
    }
    found.retain(|continuation| !continuation.messages.is_null());
    Ok(found)
}

/// The next state of `turn` in the request of `child`, whether it is recorded, retracted or held back.
fn next_state_of_child(turn: &TurnRecord, child: &TurnSummary) -> Option<Value> {
    let report = child.matched.get("next_state")?;
    if let Some(messages) = report.get("kept_back") {
        return Some(messages.clone());
    }
    let was_retracted = |id: TurnId| {
        let mut retracted = turn.retractions.iter().rev();
        retracted
            .find(|retraction| retraction.source == Some(id))
            .map(|retraction| retraction.messages.clone())
    };
    let handed = report.get("handed").and_then(Value::as_bool) == Some(true);
    match turn.next_source {
        Some(source) if source == child.id => turn.next_state.clone(),
        // Recorded before sources were: it was assigned once, and there is no other.
        None if handed && turn.retractions.is_empty() => turn.next_state.clone(),
        _ => was_retracted(child.id),
    }
}

/// The kind of ambiguity for which a turn's request was held back.
pub(crate) fn ambiguity_kind(matched: &Value) -> Option<String> {
    let kind = matched.get("next_state")?.get("doubt")?.as_str()?;
    Some(kind.to_owned())
}
