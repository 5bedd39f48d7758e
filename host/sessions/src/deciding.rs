//! Continue, fork, retry or new: what an arrived request is, and why.
//!
//! | decision | means | next state |
//! |---|---|---|
//! | `continue` | it goes on from a reply of ours | to that turn, at once or, in doubt, later |
//! | `fork` | it goes on from a reply that was already continued otherwise | to that turn, unless the conversation went on from the first |
//! | `retry` | it is the same request again | none: asking again says nothing about the first answer |
//! | `new` | nothing of ours is in it | none |
//!
//! Requests without a reply of ours are decided in `opening`, next states are handed out in `handing`. Only reads; the
//! outcome is written by `collecting`.

use clawhost_journal::{
    NewRetraction, NextState, SessionId, TurnHit, TurnId, TurnKind, TurnRecord, TurnState,
};
use serde_json::{Map, Value, json};

use crate::anchor::{Histories, request_digest, trail};
use crate::error::SessionError;
use crate::following::Following;
use crate::history::agreement;
use crate::lookup::{Asker, Lookup};
use crate::matching::{Found, Search, Shown, hundredths, search};
use crate::normalise::{Plain, list, plain_all};
use crate::options::SessionOptions;
use crate::request::Incoming;
use crate::retry::{self, Repeated};
use crate::user_side::Sided;

/// A session of the caller's key that the client named, and where the name came from.
pub(crate) struct Named {
    /// The session; not in the journal yet when its name is new.
    pub(crate) id: SessionId,
    /// What the client calls it.
    pub(crate) name: String,
    /// `header` or `body`.
    pub(crate) origin: &'static str,
}

/// What is to be written for a request.
pub(crate) struct Decision {
    /// Session, or none where a new one is to be opened.
    pub(crate) session: Option<SessionId>,
    /// What the client calls it, where it named one.
    pub(crate) name: Option<String>,
    /// How it was found: `header`, `body`, `content` or `new`.
    pub(crate) origin: &'static str,
    /// The turn that is continued.
    pub(crate) parent: Option<TurnId>,
    /// Group of the request that is repeated.
    pub(crate) group: Option<String>,
    /// What the client declared.
    pub(crate) kind: TurnKind,
    /// Next states that this request shows to be none.
    pub(crate) retract: Vec<NewRetraction>,
    /// Next states to hand out.
    pub(crate) next: Vec<NextState>,
    /// Digest of the request.
    pub(crate) digest: String,
    /// The explanation.
    pub(crate) matched: Value,
    /// By what a later request finds the new turns again.
    pub(crate) histories: Vec<String>,
}

/// One request under decision.
pub(crate) struct Case<'a> {
    pub(crate) lookup: Lookup<'a>,
    pub(crate) options: &'a SessionOptions,
    pub(crate) incoming: &'a Incoming,
    pub(crate) now_ms: i64,
    pub(crate) plain: Vec<Plain>,
    pub(crate) named: Option<Named>,
    pub(crate) kind: TurnKind,
}

impl<'a> Case<'a> {
    /// Prepares a request for decision.
    pub(crate) fn new(
        lookup: Lookup<'a>,
        options: &'a SessionOptions,
        incoming: &'a Incoming,
        named: Option<Named>,
        now_ms: i64,
    ) -> Self {
        Self {
            lookup,
            options,
            incoming,
            now_ms,
            plain: plain_all(&incoming.messages),
            named,
            kind: declared_kind(incoming),
        }
    }

    /// Decides.
    pub(crate) fn decide(&self) -> Result<Decision, SessionError> {
        let mut decision = match &self.named {
            Some(named) => self.of_named(named)?,
            None => self.by_content()?,
        };
        decision.kind = self.kind;
        decision.histories = Histories::to_keep(&self.plain, self.incoming.user.as_deref());
        if let Some(matched) = decision.matched.as_object_mut() {
            let declared = self.incoming.turn_type.as_deref();
            if let Some(word) = declared {
                matched.insert("turn_type".to_owned(), word.into());
            }
            if self.incoming.session_done {
                matched.insert("session_done".to_owned(), true.into());
            }
            matched.insert("by".to_owned(), decision.origin.into());
            matched.insert(
                "mark".to_owned(),
                json!({
                    "user": self.incoming.user,
                    "trace": self.incoming.trace,
                    "request": self.incoming.request_id,
                    "trail": trail(&self.plain),
                }),
            );
        }
        Ok(decision)
    }

    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker {
            key: self.incoming.key.as_deref(),
            user: self.incoming.user.as_deref(),
            trace: self.incoming.trace.as_deref(),
            request: self.incoming.request_id.as_deref(),
        }
    }

    pub(crate) fn digest(&self, without: Option<usize>) -> String {
        let kept = self
            .plain
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != without)
            .map(|(_, message)| message);
        request_digest(kept, &self.incoming.tools)
    }

    /// Digest of a part of the request.
    pub(crate) fn digest_of(&self, messages: &[Plain]) -> String {
        request_digest(messages.iter(), &self.incoming.tools)
    }

    fn by_content(&self) -> Result<Decision, SessionError> {
        let mut search = search(&self.lookup, &self.asker(), &self.plain, None)?;
        match search.found.take() {
            Some(found) => self.continuing(found, &search),
            None => self.opening(&search),
        }
    }

    fn of_named(&self, named: &Named) -> Result<Decision, SessionError> {
        let turns = self.lookup.session(&named.id)?;
        if turns.is_empty() {
            return Ok(self.settled(
                "new",
                "first request under this session id",
                self.digest(None),
                &Search::default(),
            ));
        }
        let mut search = search(&self.lookup, &self.asker(), &self.plain, Some(&named.id))?;
        if let Some(found) = search.found.take() {
            return self.continuing(found, &search);
        }
        let digest = self.digest(None);
        let repeated = retry::of_named(
            &self.lookup,
            &self.asker(),
            &digest,
            &named.id,
            self.now_ms,
            self.options.retry_window,
        )?;
        match repeated {
            Some(repeated) => Ok(self.repeating(repeated, digest, &search)),
            None => match self.by_user_side()? {
                Sided::Found(found) if found.shown.is_there() => self.continuing(*found, &search),
                _ => self.following_in_order(&turns, &search),
            },
        }
    }

    /// A reply of ours is in the request.
    pub(crate) fn continuing(
        &self,
        found: Found,
        search: &Search,
    ) -> Result<Decision, SessionError> {
        let Found {
            turn,
            place,
            agreement,
            why,
            shown,
        } = found;
        let previous = plain_all(list(&turn.messages));
        let following = match shown.is_there() {
            true => Following::after(place, &self.plain, &previous),
            false => Following::after_asked(place, &self.plain, &previous),
        };
        let digest = self.digest(following.ephemeral);
        if let Some(repeated) =
            retry::of_continuation(&self.lookup, &self.asker(), &digest, turn.id)?
        {
            let mut decision = self.repeating(repeated, digest, search);
            note(
                &mut decision.matched,
                "agreed",
                hundredths(agreement.of_request).into(),
            );
            self.note_ephemeral(&mut decision.matched, &following);
            return Ok(decision);
        }
        // What was retracted followed it as well, only not as its next state.
        let retracted = turn.retractions.last().map(|last| &last.messages);
        let went_on = match turn.next_state.as_ref().or(retracted) {
            Some(known) => Some(self.other_way(&turn, known, &following)?),
            None => None,
        };
        let (word, reason) = match went_on {
            Some(Way::Fork(how)) => (
                "fork",
                format!("goes back to the reply of turn {} ({why}): {how}", turn.id),
            ),
            Some(Way::On(how)) => (
                "continue",
                format!("goes on from the reply of turn {} ({why}): {how}", turn.id),
            ),
            None => (
                "continue",
                format!("goes on from the reply of turn {}: {why}", turn.id),
            ),
        };
        let mut decision = self.settled(word, &reason, digest, search);
        if self.named.is_none() {
            decision.origin = "content";
            decision.session = Some(turn.session.clone());
        }
        decision.parent = Some(turn.id);
        note(&mut decision.matched, "parent", json!(turn.id));
        note(&mut decision.matched, "place", place.into());
        note(
            &mut decision.matched,
            "agreed",
            hundredths(agreement.of_request).into(),
        );
        self.note_ephemeral(&mut decision.matched, &following);
        self.hand_out(&mut decision, &turn, &previous, &following, shown)?;
        Ok(decision)
    }

    /// A named session in whose request no reply of ours was found: its turns follow in order.
    fn following_in_order(
        &self,
        turns: &[TurnHit],
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
            return Ok(self.settled("continue", reason, self.digest(None), search));
        };
        let previous = plain_all(list(&turn.messages));
        let following = Following::after_last(&self.plain, &previous);
        let digest = self.digest(following.ephemeral);
        let reason = format!(
            "the session was named; our replies are not in the request, so it follows turn {} in order",
            turn.id
        );
        let mut decision = self.settled("continue", &reason, digest, search);
        decision.parent = Some(turn.id);
        note(&mut decision.matched, "parent", json!(turn.id));
        note(
            &mut decision.matched,
            "agreed",
            hundredths(agreement(&self.plain, &previous).of_request).into(),
        );
        self.note_ephemeral(&mut decision.matched, &following);
        self.hand_out(&mut decision, &turn, &previous, &following, Shown::InOrder)?;
        Ok(decision)
    }

    pub(crate) fn repeating(
        &self,
        repeated: Repeated,
        digest: String,
        search: &Search,
    ) -> Decision {
        let Repeated { turn, why } = repeated;
        let mut decision = self.settled("retry", &why, digest, search);
        if self.named.is_none() {
            decision.origin = "content";
            decision.session = Some(turn.session);
        }
        decision.parent = turn.parent;
        decision.group = Some(turn.group);
        note(&mut decision.matched, "retry_of", json!(turn.id));
        note(&mut decision.matched, "parent", json!(turn.parent));
        decision
    }

    pub(crate) fn settled(
        &self,
        word: &str,
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
            matched: json!({
                "decision": word,
                "reason": reason,
                "agreed": null,
                "considered": search.considered,
                "compared": search.compared,
                "candidates": search.listed,
            }),
            histories: Vec::new(),
        }
    }

    /// How a request relates to what already followed the same reply.
    fn other_way(
        &self,
        turn: &TurnRecord,
        known: &Value,
        following: &Following,
    ) -> Result<Way, SessionError> {
        let known = plain_all(list(known));
        let now: Vec<&Plain> = following.plain(&self.plain).collect();
        let begins_alike =
            now.len() >= known.len() && now.iter().zip(&known).all(|(a, b)| a.mark == b.mark);
        if begins_alike && following.unknown_reply {
            return Ok(Way::On("the reply that came after it is not ours as it stands there, edited or of another model".to_owned()));
        }
        if begins_alike && now.len() > known.len() {
            return Ok(Way::Fork(
                "our answer to what followed it was dropped and more was asked".to_owned(),
            ));
        }
        let children = self.lookup.children(turn.id)?;
        if let Some(other) = children
            .iter()
            .find(|child| child.state == TurnState::Generating)
        {
            return Ok(Way::Fork(format!(
                "turn {} is going on from it at the same time",
                other.id
            )));
        }
        Ok(Way::Fork(
            "an earlier message was edited, or something else is asked beside it".to_owned(),
        ))
    }

    fn note_ephemeral(&self, matched: &mut Value, following: &Following) {
        if let Some(message) = following.ephemeral.and_then(|at| self.plain.get(at)) {
            let begins: String = message.text.chars().take(60).collect();
            note(
                matched,
                "ephemeral",
                json!({"begins": begins, "why": "this client replaces its last message in each request"}),
            );
        }
    }
}

enum Way {
    On(String),
    Fork(String),
}

fn declared_kind(incoming: &Incoming) -> TurnKind {
    match incoming
        .turn_type
        .as_deref()
        .map(|word| word.trim().to_ascii_lowercase())
        .as_deref()
    {
        Some("main") => TurnKind::Main,
        Some("side") => TurnKind::Side,
        _ => TurnKind::Unknown,
    }
}

pub(crate) fn note(matched: &mut Value, name: &str, value: Value) {
    if !matched.is_object() {
        *matched = Value::Object(Map::new());
    }
    if let Some(fields) = matched.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}
