//! The requests that go on from one reply. One of them brought what came next in the conversation; the others are side
//! requests, or messages that were edited later.
//!
//! | evidence | means |
//! |---|---|
//! | a later request has the reply to it in its history | it is part of the conversation |
//! | a later request goes on from the same reply although its own was there | it was left out |
//! | its reply was still being made then | nothing yet: both are held back |

use clawhost_journal::{TurnHit, TurnId, TurnKind, TurnRecord, TurnState};
use serde_json::Value;

use crate::doubt;
use crate::error::SessionError;
use crate::lookup::Lookup;

/// A request that goes on from a reply, with its retries.
#[derive(Debug)]
pub(crate) struct Rival {
    /// Its first turn, by which a next state names its source.
    pub(crate) turn: TurnId,
    /// Group of its turns.
    pub(crate) group: String,
    /// What it says after the reply.
    pub(crate) messages: Value,
    /// Kind of the doubt about it, one of the constants of [`crate::doubt`].
    pub(crate) doubt: Option<String>,
    /// A reply to it is being made.
    pub(crate) running: bool,
    /// All of its turns.
    turns: Vec<TurnId>,
    /// The client declared it a main turn, or something followed it.
    main: bool,
}

impl Rival {
    /// The conversation went on from it.
    pub(crate) fn is_proved(&self, lookup: &Lookup<'_>) -> Result<bool, SessionError> {
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

    /// It was doubted for its own shape, and not only because there is another one beside it.
    pub(crate) fn is_odd(&self) -> bool {
        self.doubt
            .as_deref()
            .is_some_and(|kind| kind != doubt::BESIDE)
    }
}

/// Everything that goes on from a turn and may have brought its next state, newest first.
pub(crate) fn rivals(lookup: &Lookup<'_>, turn: &TurnRecord) -> Result<Vec<Rival>, SessionError> {
    let mut found: Vec<Rival> = Vec::new();
    for child in lookup.children(turn.id)? {
        let running = child.state == TurnState::Generating;
        let main = child.kind == TurnKind::Main;
        let messages = brought(turn, &child);
        if let Some(known) = found.iter_mut().find(|rival| rival.group == child.group) {
            known.turns.push(child.id);
            known.running |= running;
            known.main |= main;
            // The first of the group was decided on; those after it are retries or choices.
            if let Some(messages) = messages {
                known.turn = child.id;
                known.messages = messages;
                known.doubt = doubt_of(&child.matched);
            }
            continue;
        }
        found.push(Rival {
            turn: child.id,
            messages: messages.unwrap_or(Value::Null),
            doubt: doubt_of(&child.matched),
            running,
            turns: vec![child.id],
            main,
            group: child.group,
        });
    }
    found.retain(|rival| !rival.messages.is_null());
    Ok(found)
}

/// What a request brought as the next state of `turn`, whether it is handed out now, was retracted or is held back.
fn brought(turn: &TurnRecord, child: &TurnHit) -> Option<Value> {
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
        // Recorded before sources were: it was handed out once, and there is no other.
        None if handed && turn.retractions.is_empty() => turn.next_state.clone(),
        _ => was_retracted(child.id),
    }
}

/// Kind of the doubt that a turn's request was held back for.
pub(crate) fn doubt_of(matched: &Value) -> Option<String> {
    let kind = matched.get("next_state")?.get("doubt")?.as_str()?;
    Some(kind.to_owned())
}
