//! The requests that continue one reply. One of them contains the next state of the conversation; the others are side
//! requests, or the message was edited later.
//!
//! | evidence | conclusion |
//! |---|---|
//! | a later request has the reply to it in its history | it is part of the conversation |
//! | a later request continues the same reply although its own reply was complete | it was left out |
//! | its reply was still being generated at that time | none yet: both are held back |

use clawhost_chat::Message;
use clawhost_journal::{TurnId, TurnKind, TurnRecord, TurnState, TurnSummary};

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
    pub(crate) messages: Vec<Message>,
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
                known.ambiguity = child.matched.ambiguity().map(str::to_owned);
            }
            continue;
        }
        found.push(Continuation {
            turn: child.id,
            // Without a next state, another turn of the group may have one.
            messages: messages.unwrap_or_default(),
            ambiguity: child.matched.ambiguity().map(str::to_owned),
            running,
            turns: vec![child.id],
            main,
            group: child.group,
        });
    }
    // A next state is never empty.
    found.retain(|continuation| !continuation.messages.is_empty());
    Ok(found)
}

/// The next state of `turn` in the request of `child`, whether it is recorded, retracted or held back.
fn next_state_of_child(turn: &TurnRecord, child: &TurnSummary) -> Option<Vec<Message>> {
    let report = child.matched.next_state.as_ref()?;
    if let Some(messages) = &report.kept_back {
        return Some(messages.clone());
    }
    let was_retracted = |id: TurnId| {
        let mut retracted = turn.retractions.iter().rev();
        retracted
            .find(|retraction| retraction.source == Some(id))
            .map(|retraction| retraction.messages.clone())
    };
    match turn.next_source {
        Some(source) if source == child.id => turn.next_state.clone(),
        // Recorded before sources were: it was assigned once, and there is no other.
        None if report.handed && turn.retractions.is_empty() => turn.next_state.clone(),
        _ => was_retracted(child.id),
    }
}
