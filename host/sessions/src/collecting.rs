//! [`Sessions`]: the door through which requests and replies enter the record.

use std::sync::{Arc, Mutex, PoisonError};

use clawhost_journal::{
    Arrival, Completion, Finish, Journal, JournalError, NewTurn, SessionId, SessionUpsert, TurnId,
    now_ms,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::anchor::reply_anchor;
use crate::deciding::{Case, Decision, Named};
use crate::error::{SESSION_ID_LIMIT, SessionError};
use crate::handing::undecided;
use crate::lookup::Lookup;
use crate::options::SessionOptions;
use crate::request::{Arrived, Incoming, Reply};
use crate::unrecorded::{TurnEnd, Unrecorded};

/// Collects turns from live traffic. Cheap to clone; everything it knows is in the journal, so a new one over the same
/// journal goes on where the old one stopped.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) journal: Journal,
    pub(crate) options: Arc<SessionOptions>,
    /// Deciding reads and then writes: two requests of one session must not both answer the same turn.
    deciding: Arc<Mutex<()>>,
    /// Ends of turns that the journal has not taken yet.
    pub(crate) unrecorded: Arc<Unrecorded>,
}

impl Sessions {
    /// Collects into this journal.
    pub fn new(journal: Journal, options: SessionOptions) -> Self {
        Self {
            journal,
            options: Arc::new(options),
            deciding: Arc::new(Mutex::new(())),
            unrecorded: Arc::default(),
        }
    }

    /// Files a request before it is answered: decides which session it belongs to and which older turn it answers, and
    /// writes all of that in one transaction. The older turn can be judged from then on.
    ///
    /// # Errors
    /// [`SessionError::NoMessages`], [`SessionError::NoChoices`] and [`SessionError::SessionId`] are the client's;
    /// nothing was written then. [`SessionError::Journal`] is the record's.
    pub fn arrive(&self, incoming: Incoming) -> Result<Arrived, SessionError> {
        if incoming.messages.is_empty() {
            return Err(SessionError::NoMessages);
        }
        if incoming.n == 0 {
            return Err(SessionError::NoChoices);
        }
        let name = session_name(&incoming)?;
        // A panic elsewhere cannot leave anything half done behind this lock: it guards no data.
        let _deciding = self.deciding.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = incoming.received_ms.unwrap_or_else(now_ms);
        let lookup = Lookup::new(&self.journal);
        let named = match name {
            Some((name, origin)) => Some(named(&lookup, &incoming, name, origin, ms)?),
            None => None,
        };
        let decision = Case::new(lookup, &self.options, &incoming, named, ms).decide()?;
        let session = match &decision.session {
            Some(session) => session.clone(),
            None => fresh_session(&lookup, &incoming, ms)?,
        };
        // Read before anything is written: once turns are recorded, nothing here may fail without closing them.
        let name = lookup
            .session_name(&session)?
            .or_else(|| decision.name.clone())
            .unwrap_or_else(|| session.to_string());
        let done = incoming.session_done;
        let arrival = arrival(incoming, decision, session, ms);
        let turns = self.journal.arrive(&arrival)?;
        let Arrival {
            session,
            turns: written,
            ..
        } = arrival;
        if done {
            // The turn is still to be answered; the journal closes it when it is.
            self.end(&session.id, "done")?;
        }
        let matched = written
            .into_iter()
            .next()
            .map_or(Value::Null, |turn| turn.matched);
        tracing::debug!(session = %session.id, turns = turns.len(), decision = ?matched.get("decision"), "request filed");
        Ok(Arrived {
            session: session.id,
            name,
            turns,
            matched,
        })
    }

    /// Records a finished reply. A client that saw its end can count on being recognised by it.
    ///
    /// # Errors
    /// [`SessionError::Journal`] when there is no such turn, when it has ended already, or when the record cannot be
    /// written. The turn is closed as aborted then, with what there is of it, as soon as the journal takes that.
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
        self.unrecorded.add(end, &error);
        Err(error.into())
    }

    /// Records a reply that nobody waits for any longer, with what there was of it. It never trains, but a client
    /// that kept the fragment is still recognised by it.
    ///
    /// # Errors
    /// As [`Sessions::complete`].
    pub fn abort(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<Reply>,
    ) -> Result<(), SessionError> {
        self.cut(turn, reason, false, partial)
    }

    /// Records a reply that broke off by a fault of ours, with what there was of it. Like [`Sessions::abort`] else.
    ///
    /// # Errors
    /// As [`Sessions::complete`].
    pub fn fail(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<Reply>,
    ) -> Result<(), SessionError> {
        self.cut(turn, reason, true, partial)
    }

    fn cut(
        &self,
        turn: TurnId,
        reason: &str,
        failed: bool,
        partial: Option<Reply>,
    ) -> Result<(), SessionError> {
        let partial = partial.map(cut);
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
        self.unrecorded.add(end, &error);
        Err(error.into())
    }

    /// Ends a session because somebody said so. It opens again when it is continued.
    ///
    /// # Errors
    /// [`SessionError::UnknownSession`] for a session that does not exist.
    pub fn done(&self, session: &SessionId) -> Result<(), SessionError> {
        match self.end_undisturbed(session, "done") {
            Err(SessionError::Journal(JournalError::UnknownSession { session })) => {
                Err(SessionError::UnknownSession(session))
            }
            ended => ended,
        }
    }

    /// Ends a session while no request of it is decided.
    pub(crate) fn end_undisturbed(
        &self,
        session: &SessionId,
        reason: &str,
    ) -> Result<(), SessionError> {
        let _deciding = self.deciding.lock().unwrap_or_else(PoisonError::into_inner);
        self.end(session, reason)
    }

    /// Releases what was held back in doubt, then ends the session. A kill in between leaves it open, to be ended again.
    fn end(&self, session: &SessionId, reason: &str) -> Result<(), SessionError> {
        let released = undecided(&Lookup::new(&self.journal), session)?;
        if !released.is_empty() {
            self.journal.record_next_states(&released)?;
        }
        Ok(self.journal.end_session(session, reason)?)
    }
}

/// A reply that ended before its end.
fn cut(reply: Reply) -> Completion {
    Completion {
        finish: Finish::Aborted,
        ..completion(reply)
    }
}

fn completion(reply: Reply) -> Completion {
    Completion {
        ms: now_ms(),
        finish: reply.finish,
        anchor: reply_anchor(&reply.message),
        reply: reply.message,
        token_ids: reply.token_ids,
        logprobs: reply.logprobs,
        full_logprobs: reply.full_logprobs,
        forced: reply.forced,
    }
}

/// The session that the client names, and whether in a header or in the body.
fn session_name(incoming: &Incoming) -> Result<Option<(&str, &'static str)>, SessionError> {
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

/// The session of the caller's key with this name. Other keys may use the same name for sessions of theirs, so the id of
/// a new one tells nothing of what exists; where no keys are configured, everybody shares the names and the id is the name.
fn named(
    lookup: &Lookup<'_>,
    incoming: &Incoming,
    name: &str,
    origin: &'static str,
    ms: i64,
) -> Result<Named, SessionError> {
    let id = SessionId::from(name);
    let id = match lookup.session_of(incoming.key.as_deref(), name)? {
        Some(known) => known,
        None if incoming.key.is_none() && !lookup.is_taken(&id)? => id,
        None => fresh_session(lookup, incoming, ms)?,
    };
    Ok(Named {
        id,
        name: name.to_owned(),
        origin,
    })
}

/// An id that no session has. It tells nothing of what was said.
fn fresh_session(
    lookup: &Lookup<'_>,
    incoming: &Incoming,
    ms: i64,
) -> Result<SessionId, SessionError> {
    let mut attempt = 0u64;
    loop {
        let mut hash = Sha256::new();
        hash.update(incoming.response_id.as_bytes());
        hash.update(ms.to_le_bytes());
        hash.update(attempt.to_le_bytes());
        let id: String = hash
            .finalize()
            .iter()
            .take(10)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let id = SessionId(format!("s-{id}"));
        if !lookup.is_taken(&id)? {
            return Ok(id);
        }
        attempt += 1;
    }
}

fn arrival(incoming: Incoming, decision: Decision, session: SessionId, ms: i64) -> Arrival {
    let group = decision
        .group
        .unwrap_or_else(|| format!("{session}/{}", incoming.response_id));
    let messages = Value::Array(incoming.messages);
    let tools = Value::Array(incoming.tools);
    let template = Value::Object(incoming.template);
    let turn = |choice| NewTurn {
        response_id: incoming.response_id.clone(),
        choice,
        group: group.clone(),
        kind: decision.kind,
        parent: decision.parent,
        received_ms: ms,
        key: incoming.key.clone(),
        request_digest: decision.digest.clone(),
        messages: messages.clone(),
        tools: tools.clone(),
        template: template.clone(),
        prompt_ids: incoming.prompt_ids.clone(),
        sampling: incoming.sampling.clone(),
        temperature: incoming.temperature,
        adapter_version: incoming.adapter_version,
        adapter_digest: incoming.adapter_digest.clone(),
        model: incoming.model.clone(),
        matched: decision.matched.clone(),
        histories: decision.histories.clone(),
    };
    Arrival {
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
