//! Handing out next states: to the turn that is continued, and to those whose proof has come.
//!
//! A turn has one next state, given by the first request that goes on from it. Nothing is handed to or by a turn that
//! was declared a side turn, and nothing to a reply that was cut off.

use clawhost_journal::{NextState, TurnId, TurnKind, TurnRecord, TurnState};
use serde_json::{Value, json};

use crate::deciding::{Case, Decision, note};
use crate::doubt;
use crate::error::SessionError;
use crate::following::Following;
use crate::normalise::{Plain, list};

impl Case<'_> {
    /// Hands the next state to the continued turn, or says why not; and the one that a doubtful request kept back.
    pub(crate) fn hand_out(
        &self,
        decision: &mut Decision,
        turn: &TurnRecord,
        previous: &[Plain],
        following: &Following,
    ) -> Result<(), SessionError> {
        let told: Vec<&Plain> = following.plain(&self.plain).collect();
        let refused = if self.kind == TurnKind::Side {
            Some("this request was declared a side request")
        } else if turn.kind == TurnKind::Side {
            Some("that turn was declared a side turn")
        } else if turn.next_state.is_some() {
            Some("that turn already has one")
        } else if turn.state != TurnState::Complete {
            Some("the reply of that turn was cut off")
        } else if following.is_empty(&self.plain) {
            Some("nobody said anything after that reply")
        } else {
            None
        };
        let doubt = match self.kind {
            TurnKind::Unknown if refused.is_none() => doubt::about(
                &self.plain,
                &self.incoming.tools,
                previous,
                list(&turn.tools),
                &told,
                &self.options.housekeeping,
            ),
            _ => None,
        };
        let mut messages = following.messages(&self.incoming.messages);
        let report = if let Some(why) = refused {
            json!({"turn": turn.id, "handed": false, "why": why})
        } else if let Some(doubt) = doubt {
            let why = format!(
                "waits for proof: {doubt}; if the conversation goes on from this reply, it counts"
            );
            json!({"turn": turn.id, "handed": false, "why": why, "kept_back": messages.take()})
        } else {
            decision.next.extend(self.kept_back(turn)?);
            let count = told.len();
            decision.next.push(NextState {
                turn: turn.id,
                messages: messages.take(),
                ms: self.now_ms,
            });
            json!({"turn": turn.id, "handed": true, "messages": count})
        };
        note(&mut decision.matched, "next_state", report);
        Ok(())
    }

    /// Next states that `turn`'s own request, and doubtful ones before it, kept back: now that the conversation goes on
    /// from there, the doubt is gone.
    fn kept_back(&self, turn: &TurnRecord) -> Result<Vec<NextState>, SessionError> {
        let mut proved = Vec::new();
        let mut link = kept_back_by(turn);
        while let Some((parent, messages)) = link {
            let Some(parent) = self.lookup.turn(parent)? else {
                break;
            };
            if parent.next_state.is_some()
                || parent.state != TurnState::Complete
                || parent.kind == TurnKind::Side
            {
                break;
            }
            link = kept_back_by(&parent);
            proved.push(NextState {
                turn: parent.id,
                messages,
                ms: self.now_ms,
            });
        }
        Ok(proved)
    }
}

/// What a turn's request kept back in doubt, and from which turn.
fn kept_back_by(turn: &TurnRecord) -> Option<(TurnId, Value)> {
    let messages = turn.matched.get("next_state")?.get("kept_back")?;
    Some((turn.parent?, messages.clone()))
}
