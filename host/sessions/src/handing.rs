//! Handing out next states: to the turn that is continued, and to those whose proof has come.
//!
//! A turn has one next state. The first request that goes on from it gives it, unless something about that request is
//! doubtful; what a later request proves or contradicts is corrected. Nothing is handed to or by a turn that was declared a
//! side turn, and nothing to a reply that was cut off. What is held back is released when the session ends at the latest.

use clawhost_journal::{
    NewRetraction, NextState, SessionId, TurnId, TurnKind, TurnRecord, TurnState, now_ms,
};
use serde_json::{Value, json};

use crate::deciding::{Case, Decision, note};
use crate::doubt::{self, Doubt, Shape};
use crate::error::SessionError;
use crate::following::Following;
use crate::lookup::{Lookup, is_open};
use crate::matching::Shown;
use crate::normalise::{Plain, list, plain_all};
use crate::rivals::{Rival, doubt_of, rivals};

/// Retries of retries that are followed to the first request.
const RETRIES: usize = 8;
/// Settings that tell a side request from its conversation, as the gateway names them.
const SETTINGS: [&str; 4] = ["temperature", "top_p", "max_tokens", "constraint"];
/// Turns looked back at, from one whose proof has come.
const BACK: usize = 64;

/// What is to become of a next state.
enum Fate {
    /// It is the turn's next state.
    Handed,
    /// It waits for proof.
    Held(Doubt),
    /// It never will be.
    Refused(String),
}

impl Case<'_> {
    /// Hands the next state to the continued turn, or says why not; and settles what `turn`'s own request brought, now
    /// that the conversation goes on from there.
    pub(crate) fn hand_out(
        &self,
        decision: &mut Decision,
        turn: &TurnRecord,
        previous: &[Plain],
        following: &Following,
        shown: Shown,
    ) -> Result<(), SessionError> {
        let first = self.first_request(turn)?;
        let first = first.as_ref().unwrap_or(turn);
        self.prove(decision, first.clone(), shown)?;
        let varies = varies(first, shown);
        let told: Vec<&Plain> = following.plain(&self.plain).collect();
        let fate = match self.refused(turn, following, &told) {
            Some(why) => Fate::Refused(why.to_owned()),
            None => self.weigh(decision, turn, previous, &told, shown, &varies)?,
        };
        let report = match fate {
            Fate::Refused(why) => json!({"turn": turn.id, "handed": false, "why": why}),
            Fate::Held(Doubt { kind, why }) => {
                let why = format!(
                    "held back: {why}; it counts when the conversation goes on from this reply, or ends"
                );
                let messages = following.messages(&self.incoming.messages);
                json!({"turn": turn.id, "handed": false, "why": why, "doubt": kind, "kept_back": messages})
            }
            Fate::Handed => {
                decision.next.push(NextState {
                    turn: turn.id,
                    messages: following.messages(&self.incoming.messages),
                    ms: self.now_ms,
                    source: None,
                });
                json!({"turn": turn.id, "handed": true, "messages": told.len()})
            }
        };
        note(&mut decision.matched, "next_state", report);
        if !varies.is_empty() {
            note(&mut decision.matched, "varies", json!(varies));
        }
        Ok(())
    }

    fn refused(
        &self,
        turn: &TurnRecord,
        following: &Following,
        told: &[&Plain],
    ) -> Option<&'static str> {
        let known = turn
            .next_state
            .as_ref()
            .map(|known| plain_all(list(known)))
            .unwrap_or_default();
        let again = !known.is_empty()
            && told.len() >= known.len()
            && told.iter().zip(&known).all(|(a, b)| a.mark == b.mark);
        if self.kind == TurnKind::Side {
            Some("this request was declared a side request")
        } else if turn.kind == TurnKind::Side {
            Some("that turn was declared a side turn")
        } else if turn.state != TurnState::Complete {
            Some("the reply of that turn was cut off")
        } else if following.is_empty(&self.plain) {
            Some("nobody said anything after that reply")
        } else if again && told.len() == known.len() {
            Some("that turn already has this one")
        } else if again {
            Some(
                "that turn already has one that begins the same, and our answer to it was left out",
            )
        } else {
            None
        }
    }

    /// Decides between what this request says after the reply of `turn` and what others said there.
    fn weigh(
        &self,
        decision: &mut Decision,
        turn: &TurnRecord,
        previous: &[Plain],
        told: &[&Plain],
        shown: Shown,
        varies: &[String],
    ) -> Result<Fate, SessionError> {
        let rivals = rivals(&self.lookup, turn)?;
        let current = match (&turn.next_state, turn.next_source) {
            (None, _) => None,
            (Some(_), Some(source)) => rivals.iter().find(|rival| rival.turn == source),
            (Some(known), None) => rivals.iter().find(|rival| rival.messages == *known),
        };
        match current {
            // An order that is only assumed contradicts nothing.
            current
                if turn.next_state.is_some() && (current.is_none() || shown == Shown::InOrder) =>
            {
                return Ok(Fate::Refused("that turn already has one".to_owned()));
            }
            Some(current) if current.is_proved(&self.lookup)? => {
                return Ok(Fate::Refused(format!(
                    "that turn already has one, and the conversation went on from it (turn {})",
                    current.turn
                )));
            }
            _ => {}
        }
        if self.kind == TurnKind::Unknown {
            if let Some(doubt) = self.doubt(turn, previous, told, shown, varies) {
                return Ok(Fate::Held(doubt));
            }
            if let Some(current) = current
                && !self.has_settings_of(&turn.sampling)
                && self.lookup.turn(current.turn)?.is_some_and(|record| {
                    SETTINGS
                        .iter()
                        .all(|name| record.sampling.get(name) == turn.sampling.get(name))
                })
            {
                return Ok(Fate::Held(Doubt::new(
                    doubt::SETTINGS,
                    format!(
                        "turn {} goes on from the same reply, and its settings are those of the conversation",
                        current.turn
                    ),
                )));
            }
            let running = |rival: &&Rival| rival.running && !rival.is_odd();
            if let Some(beside) = rivals.iter().find(running) {
                let why = format!(
                    "turn {} goes on from the same reply at the same time",
                    beside.turn
                );
                if current.is_some() {
                    let reason = "two requests went on from this reply at the same time";
                    self.retract(decision, turn.id, reason.to_owned());
                }
                return Ok(Fate::Held(Doubt::new(doubt::BESIDE, why)));
            }
        }
        if let Some(current) = current {
            let reason = format!(
                "a later request goes on from the same reply and leaves turn {} out",
                current.turn
            );
            self.retract(decision, turn.id, reason);
        }
        Ok(Fate::Handed)
    }

    fn doubt(
        &self,
        turn: &TurnRecord,
        previous: &[Plain],
        told: &[&Plain],
        shown: Shown,
        varies: &[String],
    ) -> Option<Doubt> {
        let request = Shape {
            messages: &self.plain,
            tools: &self.incoming.tools,
        };
        let previous = Shape {
            messages: previous,
            tools: list(&turn.tools),
        };
        let by_shown = shown
            .doubt()
            .filter(|doubt| !varies.iter().any(|kind| kind == doubt.kind));
        by_shown.or_else(|| doubt::about(request, previous, told, varies))
    }

    fn has_settings_of(&self, sampling: &Value) -> bool {
        SETTINGS
            .iter()
            .all(|name| self.incoming.sampling.get(name) == sampling.get(name))
    }

    fn retract(&self, decision: &mut Decision, turn: TurnId, reason: String) {
        decision.retract.push(NewRetraction {
            turn,
            reason,
            ms: self.now_ms,
        });
    }

    /// The conversation goes on from `turn`, so what its request said is what came after the turn before it, whatever else
    /// was taken for that. Where turns of older journals held something back before it, that is proved as well.
    fn prove(
        &self,
        decision: &mut Decision,
        mut turn: TurnRecord,
        mut shown: Shown,
    ) -> Result<(), SessionError> {
        for _ in 0..BACK {
            let Some(parent) = turn.parent else { break };
            if self.lookup.next_source(parent)? == Some(Some(turn.id)) {
                break;
            }
            let Some(parent) = self.lookup.turn(parent)? else {
                break;
            };
            if parent.state != TurnState::Complete || parent.kind == TurnKind::Side {
                break;
            }
            let rivals = rivals(&self.lookup, &parent)?;
            let Some(own) = rivals.iter().find(|rival| rival.group == turn.group) else {
                break;
            };
            // A client that shows this reply and left that one out has dropped it.
            if own.doubt.as_deref() == Some(doubt::REPLY) && shown.is_there() {
                break;
            }
            if parent.next_state.is_some() && shown == Shown::InOrder {
                break;
            }
            if parent.next_state.as_ref() == Some(&own.messages) {
                break;
            }
            if parent.next_state.is_some() {
                let source = parent.next_source;
                let current = rivals.iter().find(|rival| Some(rival.turn) == source);
                let Some(current) = current else { break };
                if current.is_proved(&self.lookup)? {
                    break;
                }
                let reason = format!(
                    "the conversation went on from turn {}, which goes on from the same reply and leaves turn {} out",
                    turn.id, current.turn
                );
                self.retract(decision, parent.id, reason);
            }
            decision.next.push(NextState {
                turn: parent.id,
                messages: own.messages.clone(),
                ms: self.now_ms,
                source: Some(own.turn),
            });
            shown = Shown::AsGiven;
            turn = parent;
        }
        Ok(())
    }

    /// The request that `turn` repeats, if it is a retry.
    fn first_request(&self, turn: &TurnRecord) -> Result<Option<TurnRecord>, SessionError> {
        let mut first: Option<TurnRecord> = None;
        for _ in 0..RETRIES {
            let matched = &first.as_ref().unwrap_or(turn).matched;
            let Some(id) = matched.get("retry_of").and_then(Value::as_i64) else {
                break;
            };
            let Some(before) = self.lookup.turn(TurnId(id))? else {
                break;
            };
            first = Some(before);
        }
        Ok(first)
    }
}

/// Kinds of doubt that the conversation has disproved by going on from `turn`, beside those from before.
fn varies(turn: &TurnRecord, shown: Shown) -> Vec<String> {
    let known = turn.matched.get("varies").and_then(Value::as_array);
    let mut varies: Vec<String> = known
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let disproved = doubt_of(&turn.matched).filter(|kind| match kind.as_str() {
        doubt::SYSTEM | doubt::TOOLS => true,
        // Only a client that leaves out our replies again is one that always does.
        doubt::REPLY => !shown.is_there(),
        _ => false,
    });
    varies.extend(disproved.filter(|kind| !varies.contains(kind)));
    varies
}

/// Next states of a session that were held back and that nothing has decided: the session ends, so the likeliest of each
/// turn is released.
pub(crate) fn undecided(
    lookup: &Lookup<'_>,
    session: &SessionId,
) -> Result<Vec<NextState>, SessionError> {
    let turns = lookup.whole_session(session)?;
    let mut parents: Vec<TurnId> = turns
        .iter()
        .filter(|hit| hit.matched.pointer("/next_state/kept_back").is_some())
        .filter_map(|hit| hit.parent)
        .collect();
    parents.sort_unstable();
    parents.dedup();
    let mut released = Vec::new();
    for parent in parents {
        let open = turns.iter().any(|hit| hit.id == parent && is_open(hit));
        let Some(turn) = lookup.turn(parent)?.filter(|_| open) else {
            continue;
        };
        let mut likeliest: Option<((bool, bool, TurnId), Rival)> = None;
        for rival in rivals(lookup, &turn)? {
            let proved = rival.is_proved(lookup)?;
            // What followed it would have released it; it left our reply out where others were shown.
            if proved && rival.doubt.as_deref() == Some(doubt::REPLY) {
                continue;
            }
            let rank = (proved, !rival.is_odd(), rival.turn);
            if likeliest.as_ref().is_none_or(|(best, _)| *best < rank) {
                likeliest = Some((rank, rival));
            }
        }
        released.extend(likeliest.map(|(_, rival)| NextState {
            turn: turn.id,
            messages: rival.messages,
            ms: now_ms(),
            source: Some(rival.turn),
        }));
    }
    Ok(released)
}
