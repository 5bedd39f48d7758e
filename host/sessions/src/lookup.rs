//! The questions that an arrival puts to the journal. Each is answered by an index and brings slim rows: only the few
//! turns that are worth comparing are read with their messages.

use clawhost_journal::{Journal, SessionId, TurnHit, TurnId, TurnKind, TurnRecord, TurnState};
use serde_json::Value;

use crate::error::SessionError;

/// Slim rows asked for at once.
pub(crate) const HITS: u32 = 96;
/// Slim rows of one named session, newest first.
const SESSION_HITS: u32 = 64;
/// Turns read with their reply to tell which of a few it was.
const READ: usize = 8;

/// Who asks, as far as a request without a session id says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker<'a> {
    /// Name of the API key.
    pub(crate) key: Option<&'a str>,
    /// `user` field.
    pub(crate) user: Option<&'a str>,
    /// Trace id.
    pub(crate) trace: Option<&'a str>,
    /// The client's own id of the request.
    pub(crate) request: Option<&'a str>,
}

impl Asker<'_> {
    /// Why a turn cannot be this asker's, if it cannot. The key owns what it brought, and having none is an owner of its
    /// own; two users under one key are two people.
    pub(crate) fn stranger_to(&self, hit: &TurnHit) -> Option<&'static str> {
        let differ = |ours: Option<&str>, theirs: Option<&str>| matches!((ours, theirs), (Some(a), Some(b)) if a != b);
        if self.key != hit.key.as_deref() {
            Some("another key")
        } else if differ(self.user, remembered(&hit.matched, "user")) {
            Some("another user")
        } else {
            None
        }
    }

    /// The key is known on both sides and equal.
    pub(crate) fn same_key(&self, hit: &TurnHit) -> bool {
        self.key.is_some() && self.key == hit.key.as_deref()
    }

    /// The user or the trace is known on both sides and equal.
    pub(crate) fn same_user_or_trace(&self, hit: &TurnHit) -> bool {
        self.same_trace(hit)
            || (self.user.is_some() && self.user == remembered(&hit.matched, "user"))
    }

    /// The trace is known on both sides and equal.
    pub(crate) fn same_trace(&self, hit: &TurnHit) -> bool {
        self.trace.is_some() && self.trace == remembered(&hit.matched, "trace")
    }

    /// The client's own id of the request is known on both sides and equal.
    pub(crate) fn same_request(&self, hit: &TurnHit) -> bool {
        self.request.is_some() && self.request == remembered(&hit.matched, "request")
    }
}

/// What `matched` of a turn keeps of the request beside the decision: `user`, `trace`, `request`.
pub(crate) fn remembered<'a>(matched: &'a Value, name: &str) -> Option<&'a str> {
    matched.get("mark")?.get(name)?.as_str()
}

/// The trail of a turn's request, see [`crate::anchor::trail`].
pub(crate) fn trail_of(matched: &Value) -> Vec<&str> {
    matched
        .get("mark")
        .and_then(|mark| mark.get("trail"))
        .and_then(Value::as_array)
        .map(|trail| trail.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// A whole reply without a next state, of a turn that may have one.
pub(crate) fn is_open(hit: &TurnHit) -> bool {
    hit.state == TurnState::Complete && !hit.has_next && hit.kind != TurnKind::Side
}

/// The journal as an arrival asks it.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    journal: &'a Journal,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(journal: &'a Journal) -> Self {
        Self { journal }
    }

    /// Turns with this reply, those without a next state first, then newest first.
    pub(crate) fn replies(
        &self,
        anchor: &str,
        key: Option<&str>,
    ) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.anchor_hits(anchor, key, HITS)?)
    }

    /// Turns with this reply that were asked what the digest says, in the same order.
    pub(crate) fn replies_to(
        &self,
        history: &str,
        anchor: &str,
        key: Option<&str>,
    ) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.history_hits(history, anchor, key, HITS)?)
    }

    /// Turns that were asked what the digest says, whatever they replied, newest first.
    pub(crate) fn asked(
        &self,
        digest: &str,
        key: Option<&str>,
    ) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.asked_hits(digest, key, HITS)?)
    }

    /// The turn whose request brought the next state of `turn`: none without a next state, `Some(None)` where it is not
    /// known.
    pub(crate) fn next_source(&self, turn: TurnId) -> Result<Option<Option<TurnId>>, SessionError> {
        Ok(self.journal.next_source(turn)?)
    }

    /// Turns of one session with this reply. Where a crowd of sessions gave it, only the last turns are looked through.
    pub(crate) fn replies_of(
        &self,
        session: &SessionId,
        anchor: &str,
        key: Option<&str>,
    ) -> Result<Vec<TurnHit>, SessionError> {
        let mut hits = self.journal.anchor_hits(anchor, key, HITS)?;
        let crowd = hits.len() == HITS as usize;
        hits.retain(|hit| hit.session == *session);
        if hits.is_empty() && crowd {
            for hit in self.session(session)?.into_iter().take(READ) {
                if self.said(hit.id, anchor)?.is_some() {
                    hits.push(hit);
                }
            }
        }
        Ok(hits)
    }

    /// The newest turn that continues `parent` and has this reply.
    pub(crate) fn child_with(
        &self,
        parent: TurnId,
        anchor: &str,
    ) -> Result<Option<TurnRecord>, SessionError> {
        for child in self.children(parent)?.into_iter().take(READ) {
            if let Some(turn) = self.said(child.id, anchor)? {
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    fn said(&self, turn: TurnId, anchor: &str) -> Result<Option<TurnRecord>, SessionError> {
        let said = |turn: &TurnRecord| {
            turn.completion
                .as_ref()
                .is_some_and(|reply| reply.anchor.as_deref() == Some(anchor))
        };
        Ok(self.turn(turn)?.filter(said))
    }

    /// Turns of a key with this request since a time, newest first.
    pub(crate) fn requests(
        &self,
        digest: &str,
        key: Option<&str>,
        since_ms: i64,
    ) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.request_hits(digest, key, since_ms, HITS)?)
    }

    /// Last turns of a session, newest first.
    pub(crate) fn session(&self, session: &SessionId) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.last_turns(session, SESSION_HITS)?)
    }

    /// Turns that continue a turn, newest first.
    pub(crate) fn children(&self, turn: TurnId) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.children(turn, HITS)?)
    }

    /// Whether any turn continues a turn.
    pub(crate) fn is_continued(&self, turn: TurnId) -> Result<bool, SessionError> {
        Ok(!self.journal.children(turn, 1)?.is_empty())
    }

    /// All turns of a session, newest first.
    pub(crate) fn whole_session(&self, session: &SessionId) -> Result<Vec<TurnHit>, SessionError> {
        Ok(self.journal.last_turns(session, u32::MAX)?)
    }

    /// A turn with everything.
    pub(crate) fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, SessionError> {
        Ok(self.journal.turn(turn)?)
    }

    /// The session that a key calls by this name, or owns under this id.
    pub(crate) fn session_of(
        &self,
        key: Option<&str>,
        name: &str,
    ) -> Result<Option<SessionId>, SessionError> {
        let found = self.journal.session_of(key, name)?;
        Ok(found.map(|session| session.id))
    }

    /// What its owner calls a session.
    pub(crate) fn session_name(&self, session: &SessionId) -> Result<Option<String>, SessionError> {
        Ok(self.journal.session_name(session)?)
    }

    /// Whether a session id is taken, by whatever key.
    pub(crate) fn is_taken(&self, session: &SessionId) -> Result<bool, SessionError> {
        Ok(self.journal.session(session)?.is_some())
    }
}
