//! The decision about a request: continue, fork, retry or new, with the reason.
//!
//! | decision | meaning | next state |
//! |---|---|---|
//! | `continue` | it continues a reply of ours | for that turn, at once or, if ambiguous, later |
//! | `fork` | it continues a reply that already has another continuation | for that turn, unless the conversation continued from the first |
//! | `retry` | it repeats a request | none: a retry is no feedback on the first reply |
//! | `new` | it contains no reply of ours | none |
//!
//! Requests without a reply of ours are decided in `opening`, next states are assigned in `assignment`. This module only
//! reads; `sessions` writes the result.

use clawhost_chat::Message;
use clawhost_journal::{
    EphemeralNote, MatchDecision, MatchMark, MatchRecord, NewRetraction, NextState, SessionId,
    TurnId, TurnKind, TurnRecord, TurnState, TurnSummary,
};

use crate::digests::{HistoryDigests, trail};
use crate::error::SessionError;
use crate::history::compare_histories;
use crate::matching::{ReplyPresence, Search, TurnMatch, find_continued_turn, round_to_hundredths};
use crate::next_state::FollowingMessages;
use crate::normalize::{NormalizedMessage, normalize_all};
use crate::request_matcher::{ExplicitSession, RequestMatcher};
use crate::retry::RetryMatch;
use crate::user_messages::UserMatch;

/// What to record for a request.
pub(crate) struct Decision {
    /// The session; `None` for a new one.
    pub(crate) session: Option<SessionId>,
    /// The client's name for it, if any.
    pub(crate) name: Option<String>,
    /// How the session was determined: `header`, `body`, `content` or `new`.
    pub(crate) origin: &'static str,
    /// The turn that the request continues.
    pub(crate) parent: Option<TurnId>,
    /// Group of the request that a retry repeats.
    pub(crate) group: Option<String>,
    /// The kind that the client declared.
    pub(crate) kind: TurnKind,
    /// Next states to retract.
    pub(crate) retract: Vec<NewRetraction>,
    /// Next states to record.
    pub(crate) next: Vec<NextState>,
    /// Digest of the request.
    pub(crate) digest: String,
    /// The explanation, stored as `matched`.
    pub(crate) matched: MatchRecord,
    /// History digests by which a later request finds the new turns.
    pub(crate) histories: Vec<String>,
}

impl RequestMatcher<'_> {
    /// Makes the decision.
    pub(crate) fn decide(&self) -> Result<Decision, SessionError> {
        let mut decision = match &self.named {
            Some(named) => self.decide_named(named)?,
            None => self.decide_by_content()?,
        };
        decision.kind = self.kind;
        decision.histories =
            HistoryDigests::stored_digests(&self.normalized, self.incoming.user.as_deref());
        let matched = &mut decision.matched;
        matched.parent = decision.parent;
        matched.turn_type.clone_from(&self.incoming.turn_type);
        matched.session_done = self.incoming.session_done;
        matched.by = decision.origin.to_owned();
        matched.mark = MatchMark {
            user: self.incoming.user.clone(),
            trace: self.incoming.trace.clone(),
            request: self.incoming.request_id.clone(),
            trail: trail(&self.normalized),
        };
        Ok(decision)
    }

    fn decide_by_content(&self) -> Result<Decision, SessionError> {
        let mut search = find_continued_turn(&self.lookup, &self.caller(), &self.normalized, None)?;
        match search.found.take() {
            Some(found) => self.decide_continuation(found, &search),
            None => self.decide_opening(&search),
        }
    }

    fn decide_named(&self, named: &ExplicitSession) -> Result<Decision, SessionError> {
        let turns = self.lookup.session_turns(&named.id)?;
        if turns.is_empty() {
            return Ok(self.new_decision(
                MatchDecision::New,
                "first request under this session id",
                self.digest(None),
                &Search::default(),
            ));
        }
        let mut search = find_continued_turn(
            &self.lookup,
            &self.caller(),
            &self.normalized,
            Some(&named.id),
        )?;
        if let Some(found) = search.found.take() {
            return self.decide_continuation(found, &search);
        }
        let digest = self.digest(None);
        match self.retry_of_named(&digest, &named.id)? {
            Some(repeated) => Ok(self.retry_decision(repeated, digest, &search)),
            None => match self.match_user_messages()? {
                UserMatch::Found(found) if found.presence.is_present() => {
                    self.decide_continuation(*found, &search)
                }
                _ => self.decide_in_order(&turns, &search),
            },
        }
    }

    /// Decides a request that continues a turn: continue, fork or retry.
    pub(crate) fn decide_continuation(
        &self,
        found: TurnMatch,
        search: &Search,
    ) -> Result<Decision, SessionError> {
        let TurnMatch {
            turn,
            place,
            agreement,
            why,
            presence,
        } = found;
        let previous = normalize_all(&turn.messages);
        let following = match presence.is_present() {
            true => FollowingMessages::after_reply(place, &self.normalized, &previous),
            false => FollowingMessages::after_prompt(place, &self.normalized, &previous),
        };
        let digest = self.digest(following.ephemeral);
        if let Some(repeated) = self.retry_of_continuation(&digest, turn.id)? {
            let mut decision = self.retry_decision(repeated, digest, search);
            decision.matched.agreed = Some(round_to_hundredths(agreement.of_request));
            decision.matched.ephemeral = self.ephemeral_note(&following);
            return Ok(decision);
        }
        // A retracted next state followed the reply too, though not as its next state.
        let retracted = turn.retractions.last().map(|last| &last.messages);
        let went_on = match turn.next_state.as_ref().or(retracted) {
            Some(known) => Some(self.classify_branch(&turn, known, &following)?),
            None => None,
        };
        let (word, reason) = match went_on {
            Some(Branch::Fork(how)) => (
                MatchDecision::Fork,
                format!("goes back to the reply of turn {} ({why}): {how}", turn.id),
            ),
            Some(Branch::Continue(how)) => (
                MatchDecision::Continue,
                format!("goes on from the reply of turn {} ({why}): {how}", turn.id),
            ),
            None => (
                MatchDecision::Continue,
                format!("goes on from the reply of turn {}: {why}", turn.id),
            ),
        };
        let mut decision = self.new_decision(word, &reason, digest, search);
        if self.named.is_none() {
            decision.origin = "content";
            decision.session = Some(turn.session.clone());
        }
        decision.parent = Some(turn.id);
        decision.matched.place = Some(place);
        decision.matched.agreed = Some(round_to_hundredths(agreement.of_request));
        decision.matched.ephemeral = self.ephemeral_note(&following);
        self.assign_next_state(&mut decision, &turn, &previous, &following, presence)?;
        Ok(decision)
    }

    /// Decides a request of a named session without a reply of ours: it follows the session's last complete turn.
    fn decide_in_order(
        &self,
        turns: &[TurnSummary],
        search: &Search,
    ) -> Result<Decision, SessionError> {
        let before = turns
            .iter()
            .find(|turn| turn.state == TurnState::Complete && turn.kind != TurnKind::Side);
        let Some(turn) = before
            .map(|hit| self.lookup.turn(hit.id))
            .transpose()?
            .flatten()
        else {
            let reason = "the session was named, and none of its turns has a whole reply that could be continued";
            let decision = MatchDecision::Continue;
            return Ok(self.new_decision(decision, reason, self.digest(None), search));
        };
        let previous = normalize_all(&turn.messages);
        let following = FollowingMessages::after_last_reply(&self.normalized, &previous);
        let digest = self.digest(following.ephemeral);
        let reason = format!(
            "the session was named; our replies are not in the request, so it follows turn {} in order",
            turn.id
        );
        let mut decision = self.new_decision(MatchDecision::Continue, &reason, digest, search);
        decision.parent = Some(turn.id);
        let agreement = compare_histories(&self.normalized, &previous);
        decision.matched.agreed = Some(round_to_hundredths(agreement.of_request));
        decision.matched.ephemeral = self.ephemeral_note(&following);
        self.assign_next_state(
            &mut decision,
            &turn,
            &previous,
            &following,
            ReplyPresence::Assumed,
        )?;
        Ok(decision)
    }

    pub(crate) fn retry_decision(
        &self,
        repeated: RetryMatch,
        digest: String,
        search: &Search,
    ) -> Decision {
        let RetryMatch { turn, why } = repeated;
        let mut decision = self.new_decision(MatchDecision::Retry, &why, digest, search);
        if self.named.is_none() {
            decision.origin = "content";
            decision.session = Some(turn.session);
        }
        decision.parent = turn.parent;
        decision.group = Some(turn.group);
        decision.matched.retry_of = Some(turn.id);
        decision
    }

    pub(crate) fn new_decision(
        &self,
        decision: MatchDecision,
        reason: &str,
        digest: String,
        search: &Search,
    ) -> Decision {
        Decision {
            session: self.named.as_ref().map(|named| named.id.clone()),
            name: self.named.as_ref().map(|named| named.name.clone()),
            origin: self.named.as_ref().map_or("new", |named| named.origin),
            parent: None,
            group: None,
            kind: self.kind,
            retract: Vec::new(),
            next: Vec::new(),
            digest,
            matched: MatchRecord {
                decision: Some(decision),
                reason: reason.to_owned(),
                considered: search.considered,
                compared: search.compared,
                candidates: search.listed.clone(),
                ..MatchRecord::default()
            },
            histories: Vec::new(),
        }
    }

    /// Whether a request forks from, or continues, what already followed the same reply.
    fn classify_branch(
        &self,
        turn: &TurnRecord,
        known: &[Message],
        following: &FollowingMessages,
    ) -> Result<Branch, SessionError> {
        let known = normalize_all(known);
        let now: Vec<&NormalizedMessage> = following.normalized(&self.normalized).collect();
        let begins_alike =
            now.len() >= known.len() && now.iter().zip(&known).all(|(a, b)| a.digest == b.digest);
        if begins_alike && following.unknown_reply {
            return Ok(Branch::Continue("the reply that came after it is not ours as it stands there, edited or of another model".to_owned()));
        }
        if begins_alike && now.len() > known.len() {
            return Ok(Branch::Fork(
                "our answer to what followed it was dropped and more was asked".to_owned(),
            ));
        }
        let children = self.lookup.children(turn.id)?;
        if let Some(other) = children
            .iter()
            .find(|child| child.state == TurnState::Generating)
        {
            return Ok(Branch::Fork(format!(
                "turn {} is going on from it at the same time",
                other.id
            )));
        }
        Ok(Branch::Fork(
            "an earlier message was edited, or something else is asked beside it".to_owned(),
        ))
    }

    fn ephemeral_note(&self, following: &FollowingMessages) -> Option<EphemeralNote> {
        let message = &self.normalized[following.ephemeral?];
        Some(EphemeralNote {
            begins: message.text.chars().take(60).collect(),
            why: "this client replaces its last message in each request".to_owned(),
        })
    }
}

enum Branch {
    Continue(String),
    Fork(String),
}
