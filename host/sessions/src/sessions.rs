//! [`Sessions`]: records requests and replies in the journal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawhost_journal::{
    Completion, Finish, Journal, JournalError, NewRequest, NewTurn, SessionId, SessionUpsert,
    TurnId, now_ms,
};
use sha2::{Digest as _, Sha256};

use crate::assignment::held_next_states;
use crate::decision::Decision;
use crate::digests::{hex, reply_digest};
use crate::error::{SESSION_ID_LIMIT, SessionError};
use crate::lookup::Lookup;
use crate::pending_ends::{PendingTurnEnds, TurnEnd};
use crate::request::{IncomingRequest, Reply, SessionAssignment};
use crate::request_matcher::{ExplicitSession, RequestMatcher};
use clawhost_config::SessionOptions;

/// Records live traffic as sessions and turns. Cheap to clone. All state is in the journal, so a new instance continues
/// where an earlier one stopped.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) journal: Journal,
    pub(crate) options: Arc<SessionOptions>,
    key_locks: Arc<KeyLocks>,
    /// Ends of turns that the journal could not record yet.
    pub(crate) pending_ends: Arc<PendingTurnEnds>,
}

impl Sessions {
    /// Creates an instance for a journal.
    pub fn new(journal: Journal, options: SessionOptions) -> Self {
        Self {
            journal,
            options: Arc::new(options),
            key_locks: Arc::default(),
            pending_ends: Arc::default(),
        }
    }

    /// Records a request before generation: determines its session and the turn that it continues, and writes the
    /// result in one transaction. The continued turn can then be judged.
    ///
    /// # Errors
    /// [`SessionError::NoMessages`], [`SessionError::NoChoices`] and [`SessionError::SessionId`] for an invalid request,
    /// of which nothing is recorded; [`SessionError::Journal`] for journal errors.
    pub fn record_request(
        &self,
        incoming: IncomingRequest,
    ) -> Result<SessionAssignment, SessionError> {
        if incoming.messages.is_empty() {
            return Err(SessionError::NoMessages);
        }
        if incoming.n == 0 {
            return Err(SessionError::NoChoices);
        }
        let name = requested_session(&incoming)?;
        let lock = self.key_locks.of(incoming.key.as_deref());
        let _deciding = lock_ignoring_poison(&lock);
        let ms = incoming.received_ms.unwrap_or_else(now_ms);
        let lookup = Lookup::new(&self.journal);
        let named = match name {
            Some((name, origin)) => Some(explicit_session(&lookup, &incoming, name, origin, ms)?),
            None => None,
        };
        let decision = RequestMatcher::new(lookup, &self.options, &incoming, named, ms).decide()?;
        let session = match &decision.session {
            Some(session) => session.clone(),
            None => new_session_id(&lookup, &incoming, ms)?,
        };
        // Read before the write: once turns are recorded, a failure here would leave them running.
        let name = lookup
            .session_name(&session)?
            .or_else(|| decision.name.clone())
            .unwrap_or_else(|| session.to_string());
        let done = incoming.session_done;
        let arrival = arrival(incoming, decision, session, ms);
        let turns = self.journal.record_request(&arrival)?;
        let NewRequest {
            session,
            turns: written,
            ..
        } = arrival;
        if done {
            // The turn is not generated yet; the journal closes it when it ends.
            self.end(&session.id, "done")?;
        }
        let first = written.into_iter().next();
        let matched = first.expect("a request has at least one choice").matched;
        tracing::debug!(session = %session.id, turns = turns.len(), decision = ?matched.decision, "request recorded");
        Ok(SessionAssignment {
            session: session.id,
            name,
            turns,
            matched,
        })
    }

    /// Records a complete reply, by which later requests are matched.
    ///
    /// # Errors
    /// [`SessionError::Journal`] if there is no such turn, if it has already ended, or if the journal cannot be written.
    /// In the last case the turn is recorded as aborted, with the reply, as soon as the journal accepts it.
    pub fn complete(&self, turn: TurnId, reply: Reply) -> Result<(), SessionError> {
        let completion = completion(reply);
        let Err(error) = self.journal.complete(turn, &completion) else {
            return Ok(());
        };
        let end = TurnEnd {
            turn,
            reason: "the reply could not be recorded".to_owned(),
            failed: true,
            partial: Some(completion),
        };
        self.pending_ends.add(end, &error);
        Err(error.into())
    }

    /// Records a cancelled reply with its partial text. It never trains, but later requests that contain the partial
    /// reply still match.
    ///
    /// # Errors
    /// As [`Sessions::complete`].
    pub fn abort(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<Reply>,
    ) -> Result<(), SessionError> {
        self.end_incomplete_turn(turn, reason, false, partial)
    }

    /// Records a failed reply with its partial text. Otherwise as [`Sessions::abort`].
    ///
    /// # Errors
    /// As [`Sessions::complete`].
    pub fn fail(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<Reply>,
    ) -> Result<(), SessionError> {
        self.end_incomplete_turn(turn, reason, true, partial)
    }

    fn end_incomplete_turn(
        &self,
        turn: TurnId,
        reason: &str,
        failed: bool,
        partial: Option<Reply>,
    ) -> Result<(), SessionError> {
        let partial = partial.map(partial_completion);
        let recorded = if failed {
            self.journal.fail(turn, reason, partial.as_ref())
        } else {
            self.journal.abort(turn, reason, partial.as_ref())
        };
        let Err(error) = recorded else {
            return Ok(());
        };
        let reason = reason.to_owned();
        let end = TurnEnd {
            turn,
            reason,
            failed,
            partial,
        };
        self.pending_ends.add(end, &error);
        Err(error.into())
    }

    /// Ends a session on request. It reopens if it is continued.
    ///
    /// # Errors
    /// [`SessionError::UnknownSession`] for a session that does not exist.
    pub fn end_session(&self, session: &SessionId) -> Result<(), SessionError> {
        match self.end_session_locked(session, "done") {
            Err(SessionError::Journal(JournalError::UnknownSession { session })) => {
                Err(SessionError::UnknownSession(session))
            }
            ended => ended,
        }
    }

    /// Ends a session under the lock of its API key.
    pub(crate) fn end_session_locked(
        &self,
        session: &SessionId,
        reason: &str,
    ) -> Result<(), SessionError> {
        let record = self.journal.session(session)?;
        let key = record.and_then(|record| record.key);
        let lock = self.key_locks.of(key.as_deref());
        let _deciding = lock_ignoring_poison(&lock);
        self.end(session, reason)
    }

    /// Records next states that were held back, then ends the session. A kill in between leaves it open, to be ended
    /// again.
    fn end(&self, session: &SessionId, reason: &str) -> Result<(), SessionError> {
        let released = held_next_states(&Lookup::new(&self.journal), session)?;
        if !released.is_empty() {
            self.journal.record_next_states(&released)?;
        }
        Ok(self.journal.end_session(session, reason)?)
    }
}

/// One lock per API key. A decision reads and then writes: two requests of one session must not both supply the next
/// state of a turn. Sessions and turns belong to a key for ever and a decision reads those of its key only, so decisions
/// of different keys are independent.
#[derive(Default)]
struct KeyLocks {
    locks: Mutex<HashMap<Option<String>, Arc<Mutex<()>>>>,
}

impl KeyLocks {
    fn of(&self, key: Option<&str>) -> Arc<Mutex<()>> {
        let mut locks = lock_ignoring_poison(&self.locks);
        Arc::clone(locks.entry(key.map(str::to_owned)).or_default())
    }
}

/// Locks a mutex whose data a panic cannot leave inconsistent.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completion of a reply that was cut off.
fn partial_completion(reply: Reply) -> Completion {
    Completion {
        finish: Finish::Aborted,
        ..completion(reply)
    }
}

fn completion(reply: Reply) -> Completion {
    Completion {
        ms: now_ms(),
        finish: reply.finish,
        anchor: reply_digest(&reply.message),
        reply: reply.message,
        token_ids: reply.token_ids,
        logprobs: reply.logprobs,
        full_logprobs: reply.full_logprobs,
        forced: reply.forced,
    }
}

/// The session name or id that the client sent, and whether in a header or in the body.
fn requested_session(
    incoming: &IncomingRequest,
) -> Result<Option<(&str, &'static str)>, SessionError> {
    let header = incoming.session_header.as_deref().map(|id| (id, "header"));
    let body = incoming.session_body.as_deref().map(|id| (id, "body"));
    let given = [header, body]
        .into_iter()
        .flatten()
        .map(|(id, origin)| (id.trim(), origin));
    let Some((id, origin)) = given.into_iter().find(|(id, _)| !id.is_empty()) else {
        return Ok(None);
    };
    if id.len() > SESSION_ID_LIMIT || id.chars().any(char::is_control) {
        return Err(SessionError::SessionId {
            length: id.len(),
            limit: SESSION_ID_LIMIT,
        });
    }
    Ok(Some((id, origin)))
}

/// The session of the caller's API key with this name. Other keys may use the same name, so a new session gets a
/// generated id, which reveals nothing about theirs; if no keys are configured, all callers share the names and the id is
/// the name.
fn explicit_session(
    lookup: &Lookup<'_>,
    incoming: &IncomingRequest,
    name: &str,
    origin: &'static str,
    ms: i64,
) -> Result<ExplicitSession, SessionError> {
    let id = SessionId::from(name);
    let id = match lookup.find_session(incoming.key.as_deref(), name)? {
        Some(known) => known,
        None if incoming.key.is_none() && !lookup.session_exists(&id)? => id,
        None => new_session_id(lookup, incoming, ms)?,
    };
    Ok(ExplicitSession {
        id,
        name: name.to_owned(),
        origin,
    })
}

/// An unused session id. It reveals nothing about the content.
fn new_session_id(
    lookup: &Lookup<'_>,
    incoming: &IncomingRequest,
    ms: i64,
) -> Result<SessionId, SessionError> {
    let mut attempt = 0u64;
    loop {
        let mut hash = Sha256::new();
        hash.update(incoming.response_id.as_bytes());
        hash.update(ms.to_le_bytes());
        hash.update(attempt.to_le_bytes());
        let id = SessionId(format!("s-{}", hex(&hash.finalize()[..10])));
        if !lookup.session_exists(&id)? {
            return Ok(id);
        }
        attempt += 1;
    }
}

fn arrival(
    incoming: IncomingRequest,
    decision: Decision,
    session: SessionId,
    ms: i64,
) -> NewRequest {
    let group = decision
        .group
        .unwrap_or_else(|| format!("{session}/{}", incoming.response_id));
    let turn = |choice| NewTurn {
        response_id: incoming.response_id.clone(),
        choice,
        group: group.clone(),
        kind: decision.kind,
        parent: decision.parent,
        received_ms: ms,
        key: incoming.key.clone(),
        owner: incoming.owner.clone(),
        request_digest: decision.digest.clone(),
        messages: incoming.messages.clone(),
        tools: incoming.tools.clone(),
        template: incoming.template.clone(),
        experience: incoming.experience.clone(),
        prompt_ids: incoming.prompt_ids.clone(),
        sampling: incoming.sampling.clone(),
        adapter_version: incoming.adapter_version,
        adapter_digest: incoming.adapter_digest.clone(),
        model: incoming.model.clone(),
        matched: decision.matched.clone(),
        histories: decision.histories.clone(),
    };
    NewRequest {
        turns: (0..incoming.n).map(turn).collect(),
        session: SessionUpsert {
            id: session,
            name: decision.name,
            origin: decision.origin.to_owned(),
            key: incoming.key.clone(),
            user: incoming.user.clone(),
            ms,
        },
        retract: decision.retract,
        next_state_of: decision.next,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use clawhost_chat::Message;

    use super::*;

    fn request(key: &str) -> IncomingRequest {
        IncomingRequest {
            response_id: format!("chatcmpl-{key}"),
            n: 1,
            key: Some(key.to_owned()),
            messages: vec![Message::user("hi")],
            ..IncomingRequest::default()
        }
    }

    #[test]
    fn requests_of_different_keys_are_decided_concurrently() {
        let sessions = Sessions::new(Journal::in_memory().unwrap(), SessionOptions::default());
        let of_ann = sessions.key_locks.of(Some("ann"));
        let deciding = lock_ignoring_poison(&of_ann);
        sessions.record_request(request("bob")).unwrap();
        let (done, finished) = mpsc::channel();
        let waiting = sessions.clone();
        std::thread::spawn(move || {
            waiting.record_request(request("ann")).unwrap();
            done.send(()).unwrap();
        });
        assert!(finished.recv_timeout(Duration::from_millis(100)).is_err());
        drop(deciding);
        finished.recv().unwrap();
    }
}
