//! Assignment of next states: to the turn that a request continues, and to earlier turns that the request confirms.
//!
//! A turn has one next state. The first request that continues the turn supplies it, unless that request is ambiguous;
//! later requests can confirm or disprove it. Declared side turns neither get nor supply a next state, and a reply that
//! was cut off gets none. Next states that are held back are recorded at the latest when the session ends.

use clawhost_chat::SamplingParams;
use clawhost_journal::{
    NewRetraction, NextState, NextStateReport, SessionId, TurnId, TurnKind, TurnRecord, TurnState,
    now_ms,
};

use crate::ambiguity::{self, Ambiguity, RequestShape};
use crate::continuations::{Continuation, find_continuations};
use crate::decision::Decision;
use crate::error::SessionError;
use crate::lookup::{Lookup, awaits_next_state};
use crate::matching::ReplyPresence;
use crate::next_state::FollowingMessages;
use crate::normalize::{NormalizedMessage, normalize_all};
use crate::request_matcher::RequestMatcher;

/// Maximum length of a chain of retries that is followed to the first request.
const MAX_RETRY_CHAIN: usize = 8;
/// Maximum number of earlier turns confirmed by one request.
const MAX_LOOKBACK: usize = 64;

/// What to do with a next state.
enum NextStateAction {
    /// Record it as the turn's next state.
    Assign,
    /// Hold it back until it is confirmed.
    Hold(Ambiguity),
    /// Discard it.
    Reject(String),
}

impl RequestMatcher<'_> {
    /// Assigns the next state to the continued turn, or notes why not. Also confirms the next state that `turn`'s own
    /// request contained, since the conversation continues from there.
    pub(crate) fn assign_next_state(
        &self,
        decision: &mut Decision,
        turn: &TurnRecord,
        previous: &[NormalizedMessage],
        following: &FollowingMessages,
        presence: ReplyPresence,
    ) -> Result<(), SessionError> {
        let first = self.original_request(turn)?;
        let first = first.as_ref().unwrap_or(turn);
        self.confirm_earlier(decision, first.clone(), presence)?;
        let varies = disproved_kinds(first, presence);
        let new_messages: Vec<&NormalizedMessage> =
            following.normalized(&self.normalized).collect();
        let action = match self.rejection_reason(turn, following, &new_messages) {
            Some(why) => NextStateAction::Reject(why.to_owned()),
            None => {
                self.choose_action(decision, turn, previous, &new_messages, presence, &varies)?
            }
        };
        let mut report = NextStateReport {
            turn: turn.id,
            handed: false,
            messages: None,
            why: None,
            doubt: None,
            kept_back: None,
        };
        match action {
            NextStateAction::Reject(why) => report.why = Some(why),
            NextStateAction::Hold(Ambiguity { kind, why }) => {
                report.why = Some(format!(
                    "held back: {why}; it counts when the conversation goes on from this reply, or ends"
                ));
                report.doubt = Some(kind.to_owned());
                report.kept_back = Some(following.messages(&self.incoming.messages));
            }
            NextStateAction::Assign => {
                decision.next.push(NextState {
                    turn: turn.id,
                    messages: following.messages(&self.incoming.messages),
                    ms: self.now_ms,
                    source: None,
                });
                report.handed = true;
                report.messages = Some(new_messages.len());
            }
        }
        decision.matched.next_state = Some(report);
        decision.matched.varies = varies;
        Ok(())
    }

    fn rejection_reason(
        &self,
        turn: &TurnRecord,
        following: &FollowingMessages,
        new_messages: &[&NormalizedMessage],
    ) -> Option<&'static str> {
        let known = turn
            .next_state
            .as_ref()
            .map(|known| normalize_all(known))
            .unwrap_or_default();
        let again = !known.is_empty()
            && new_messages.len() >= known.len()
            && new_messages
                .iter()
                .zip(&known)
                .all(|(a, b)| a.digest == b.digest);
        if self.kind == TurnKind::Side {
            Some("this request was declared a side request")
        } else if turn.kind == TurnKind::Side {
            Some("that turn was declared a side turn")
        } else if turn.state != TurnState::Complete {
            Some("the reply of that turn was cut off")
        } else if following.is_empty(&self.normalized) {
            Some("nobody said anything after that reply")
        } else if again && new_messages.len() == known.len() {
            Some("that turn already has this one")
        } else if again {
            Some(
                "that turn already has one that begins the same, and our answer to it was left out",
            )
        } else {
            None
        }
    }

    /// Decides between this request and the other requests that continue `turn`.
    fn choose_action(
        &self,
        decision: &mut Decision,
        turn: &TurnRecord,
        previous: &[NormalizedMessage],
        new_messages: &[&NormalizedMessage],
        presence: ReplyPresence,
        varies: &[String],
    ) -> Result<NextStateAction, SessionError> {
        let continuations = find_continuations(&self.lookup, turn)?;
        let current = match (&turn.next_state, turn.next_source) {
            (None, _) => None,
            (Some(_), Some(source)) => continuations
                .iter()
                .find(|continuation| continuation.turn == source),
            (Some(known), None) => continuations
                .iter()
                .find(|continuation| continuation.messages == *known),
        };
        match current {
            // An assumed match disproves nothing.
            current
                if turn.next_state.is_some()
                    && (current.is_none() || presence == ReplyPresence::Assumed) =>
            {
                return Ok(NextStateAction::Reject(
                    "that turn already has one".to_owned(),
                ));
            }
            Some(current) if current.is_confirmed(&self.lookup)? => {
                return Ok(NextStateAction::Reject(format!(
                    "that turn already has one, and the conversation went on from it (turn {})",
                    current.turn
                )));
            }
            _ => {}
        }
        if self.kind == TurnKind::Unknown {
            if let Some(ambiguity) =
                self.detect_ambiguity(turn, previous, new_messages, presence, varies)
            {
                return Ok(NextStateAction::Hold(ambiguity));
            }
            if let Some(current) = current
                && !has_same_settings(&self.incoming.sampling.params, &turn.sampling.params)
                && self.lookup.turn(current.turn)?.is_some_and(|record| {
                    has_same_settings(&record.sampling.params, &turn.sampling.params)
                })
            {
                return Ok(NextStateAction::Hold(Ambiguity::new(
                    ambiguity::SETTINGS,
                    format!(
                        "turn {} goes on from the same reply, and its settings are those of the conversation",
                        current.turn
                    ),
                )));
            }
            let running = |continuation: &&Continuation| {
                continuation.running && !continuation.has_unusual_shape()
            };
            if let Some(beside) = continuations.iter().find(running) {
                let why = format!(
                    "turn {} goes on from the same reply at the same time",
                    beside.turn
                );
                if current.is_some() {
                    let reason = "two requests went on from this reply at the same time";
                    self.retract(decision, turn.id, reason.to_owned());
                }
                return Ok(NextStateAction::Hold(Ambiguity::new(
                    ambiguity::BESIDE,
                    why,
                )));
            }
        }
        if let Some(current) = current {
            let reason = format!(
                "a later request goes on from the same reply and leaves turn {} out",
                current.turn
            );
            self.retract(decision, turn.id, reason);
        }
        Ok(NextStateAction::Assign)
    }

    fn detect_ambiguity(
        &self,
        turn: &TurnRecord,
        previous: &[NormalizedMessage],
        new_messages: &[&NormalizedMessage],
        presence: ReplyPresence,
        varies: &[String],
    ) -> Option<Ambiguity> {
        let request = RequestShape {
            messages: &self.normalized,
            tools: &self.incoming.tools,
        };
        let previous = RequestShape {
            messages: previous,
            tools: &turn.tools,
        };
        let by_presence = presence
            .ambiguity()
            .filter(|ambiguity| !varies.iter().any(|kind| kind == ambiguity.kind));
        by_presence.or_else(|| ambiguity::detect_ambiguity(request, previous, new_messages, varies))
    }

    fn retract(&self, decision: &mut Decision, turn: TurnId, reason: String) {
        decision.retract.push(NewRetraction {
            turn,
            reason,
            ms: self.now_ms,
        });
    }

    /// The conversation continues from `turn`, so the messages of its request are the next state of its parent; another
    /// next state recorded there is retracted. Repeats this for earlier turns whose next states are still held back,
    /// which older journals can contain.
    fn confirm_earlier(
        &self,
        decision: &mut Decision,
        mut turn: TurnRecord,
        mut presence: ReplyPresence,
    ) -> Result<(), SessionError> {
        for _ in 0..MAX_LOOKBACK {
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
            let continuations = find_continuations(&self.lookup, &parent)?;
            let Some(own) = continuations
                .iter()
                .find(|continuation| continuation.group == turn.group)
            else {
                break;
            };
            // A client that includes this reply but left that one out has dropped it.
            if own.ambiguity.as_deref() == Some(ambiguity::REPLY) && presence.is_present() {
                break;
            }
            if parent.next_state.is_some() && presence == ReplyPresence::Assumed {
                break;
            }
            if parent.next_state.as_ref() == Some(&own.messages) {
                break;
            }
            if parent.next_state.is_some() {
                let source = parent.next_source;
                let current = continuations
                    .iter()
                    .find(|continuation| Some(continuation.turn) == source);
                let Some(current) = current else { break };
                if current.is_confirmed(&self.lookup)? {
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
            presence = ReplyPresence::Exact;
            turn = parent;
        }
        Ok(())
    }

    /// The original request, if `turn` is a retry.
    fn original_request(&self, turn: &TurnRecord) -> Result<Option<TurnRecord>, SessionError> {
        let mut first: Option<TurnRecord> = None;
        for _ in 0..MAX_RETRY_CHAIN {
            let Some(id) = first.as_ref().unwrap_or(turn).matched.retry_of else {
                break;
            };
            let Some(before) = self.lookup.turn(id)? else {
                break;
            };
            first = Some(before);
        }
        Ok(first)
    }
}

/// Whether the settings agree that distinguish a side request from its conversation.
fn has_same_settings(a: &SamplingParams, b: &SamplingParams) -> bool {
    (a.temperature, a.top_p, a.max_tokens) == (b.temperature, b.top_p, b.max_tokens)
        && a.constraint == b.constraint
}

/// Kinds of ambiguity that the conversation has disproved by continuing from `turn`, and those disproved before.
fn disproved_kinds(turn: &TurnRecord, presence: ReplyPresence) -> Vec<String> {
    let mut varies = turn.matched.varies.clone();
    let disproved = turn.matched.ambiguity().filter(|kind| match *kind {
        ambiguity::SYSTEM | ambiguity::TOOLS => true,
        // Only a client that leaves our replies out again always does so.
        ambiguity::REPLY => !presence.is_present(),
        _ => false,
    });
    if let Some(kind) = disproved
        && !varies.iter().any(|known| known == kind)
    {
        varies.push(kind.to_owned());
    }
    varies
}

/// Next states to record when a session ends: for each turn without one, the likeliest that was held back.
pub(crate) fn held_next_states(
    lookup: &Lookup<'_>,
    session: &SessionId,
) -> Result<Vec<NextState>, SessionError> {
    let turns = lookup.all_session_turns(session)?;
    let mut parents: Vec<TurnId> = turns
        .iter()
        .filter(|hit| hit.matched.held_messages().is_some())
        .filter_map(|hit| hit.parent)
        .collect();
    parents.sort_unstable();
    parents.dedup();
    let mut released = Vec::new();
    for parent in parents {
        let open = turns
            .iter()
            .any(|hit| hit.id == parent && awaits_next_state(hit));
        let Some(turn) = lookup.turn(parent)?.filter(|_| open) else {
            continue;
        };
        let mut likeliest: Option<((bool, bool, TurnId), Continuation)> = None;
        for continuation in find_continuations(lookup, &turn)? {
            let proved = continuation.is_confirmed(lookup)?;
            // It was confirmed but not recorded: it left our reply out, while others of its conversation include ours.
            if proved && continuation.ambiguity.as_deref() == Some(ambiguity::REPLY) {
                continue;
            }
            let rank = (proved, !continuation.has_unusual_shape(), continuation.turn);
            if likeliest.as_ref().is_none_or(|(best, _)| *best < rank) {
                likeliest = Some((rank, continuation));
            }
        }
        released.extend(likeliest.map(|(_, continuation)| NextState {
            turn: turn.id,
            messages: continuation.messages,
            ms: now_ms(),
            source: Some(continuation.turn),
        }));
    }
    Ok(released)
}
