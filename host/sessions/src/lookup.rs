//! Journal queries for matching a request. Each is answered by an index and returns turn summaries; only the few turns
//! that are worth comparing are read with their messages.

use clawhost_journal::{
    Journal, JournalError, SessionId, TurnId, TurnKind, TurnRecord, TurnState, TurnSummary,
};

/// Maximum number of summaries per query.
pub(crate) const MAX_SUMMARIES: u32 = 96;
/// Maximum number of summaries of one named session.
const SESSION_HITS: u32 = 64;
/// Maximum number of turns read with their reply to find one of them.
const MAX_READ: usize = 8;

/// The identity of the caller, as far as a request without a session id states it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caller<'a> {
    /// Name of the API key.
    pub(crate) key: Option<&'a str>,
    /// `user` field.
    pub(crate) user: Option<&'a str>,
    /// Trace id.
    pub(crate) trace: Option<&'a str>,
    /// The client's request id.
    pub(crate) request: Option<&'a str>,
}

impl Caller<'_> {
    /// Why a turn cannot belong to this caller, if so. An API key owns its turns, and no key is an owner of its own; two
    /// users of one key are different callers.
    pub(crate) fn exclusion_reason(&self, hit: &TurnSummary) -> Option<&'static str> {
        let differ = |ours: Option<&str>, theirs: Option<&str>| matches!((ours, theirs), (Some(a), Some(b)) if a != b);
        if self.key != hit.key.as_deref() {
            Some("another key")
        } else if differ(self.user, hit.matched.mark.user.as_deref()) {
            Some("another user")
        } else {
            None
        }
    }

    /// Whether both sides have a key and it is equal.
    pub(crate) fn same_key(&self, hit: &TurnSummary) -> bool {
        self.key.is_some() && self.key == hit.key.as_deref()
    }

    /// Whether both sides have a user or a trace and it is equal.
    pub(crate) fn same_user_or_trace(&self, hit: &TurnSummary) -> bool {
        self.same_trace(hit)
            || (self.user.is_some() && self.user == hit.matched.mark.user.as_deref())
    }

    /// Whether both sides have a trace and it is equal.
    pub(crate) fn same_trace(&self, hit: &TurnSummary) -> bool {
        self.trace.is_some() && self.trace == hit.matched.mark.trace.as_deref()
    }

    /// Whether both sides have a client request id and it is equal.
    pub(crate) fn same_request(&self, hit: &TurnSummary) -> bool {
        self.request.is_some() && self.request == hit.matched.mark.request.as_deref()
    }
}

/// Whether a turn has a complete reply, no next state yet, and is not a side turn.
pub(crate) fn awaits_next_state(hit: &TurnSummary) -> bool {
    hit.state == TurnState::Complete && !hit.has_next && hit.kind != TurnKind::Side
}

type Summaries = Result<Vec<TurnSummary>, JournalError>;

/// Queries for matching a request.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    journal: &'a Journal,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(journal: &'a Journal) -> Self {
        Self { journal }
    }

    /// Turns with this reply, those without a next state first, then newest first.
    pub(crate) fn turns_with_reply(&self, anchor: &str, key: Option<&str>) -> Summaries {
        self.journal.summaries_by_reply(anchor, key, MAX_SUMMARIES)
    }

    /// Turns with this history and reply, in the same order.
    pub(crate) fn turns_with_history_and_reply(
        &self,
        history: &str,
        anchor: &str,
        key: Option<&str>,
    ) -> Summaries {
        self.journal
            .summaries_by_history_and_reply(history, anchor, key, MAX_SUMMARIES)
    }

    /// Turns with this history, with any reply, newest first.
    pub(crate) fn turns_with_history(&self, digest: &str, key: Option<&str>) -> Summaries {
        self.journal
            .summaries_by_history(digest, key, MAX_SUMMARIES)
    }

    /// The turn whose request contained the next state of `turn`: `None` without a next state, `Some(None)` if it is not
    /// known.
    pub(crate) fn next_source(&self, turn: TurnId) -> Result<Option<Option<TurnId>>, JournalError> {
        self.journal.next_source(turn)
    }

    /// Turns of one session with this reply. If many sessions have this reply, only the last turns of the session are
    /// checked.
    pub(crate) fn session_turns_with_reply(
        &self,
        session: &SessionId,
        anchor: &str,
        key: Option<&str>,
    ) -> Summaries {
        let mut hits = self
            .journal
            .summaries_by_reply(anchor, key, MAX_SUMMARIES)?;
        let truncated = hits.len() == MAX_SUMMARIES as usize;
        hits.retain(|hit| hit.session == *session);
        if hits.is_empty() && truncated {
            for hit in self.session_turns(session)?.into_iter().take(MAX_READ) {
                if self.turn_if_reply(hit.id, anchor)?.is_some() {
                    hits.push(hit);
                }
            }
        }
        Ok(hits)
    }

    /// The newest turn that continues `parent` and has this reply.
    pub(crate) fn child_with_reply(
        &self,
        parent: TurnId,
        anchor: &str,
    ) -> Result<Option<TurnRecord>, JournalError> {
        for child in self.children(parent)?.into_iter().take(MAX_READ) {
            if let Some(turn) = self.turn_if_reply(child.id, anchor)? {
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    fn turn_if_reply(
        &self,
        turn: TurnId,
        anchor: &str,
    ) -> Result<Option<TurnRecord>, JournalError> {
        let said = |turn: &TurnRecord| {
            turn.completion
                .as_ref()
                .is_some_and(|reply| reply.anchor.as_deref() == Some(anchor))
        };
        Ok(self.turn(turn)?.filter(said))
    }

    /// Turns of a key with this request since a time, newest first.
    pub(crate) fn turns_with_request(
        &self,
        digest: &str,
        key: Option<&str>,
        since_ms: i64,
    ) -> Summaries {
        self.journal
            .summaries_by_request(digest, key, since_ms, MAX_SUMMARIES)
    }

    /// Last turns of a session, newest first.
    pub(crate) fn session_turns(&self, session: &SessionId) -> Summaries {
        self.journal.last_turns(session, SESSION_HITS)
    }

    /// Turns that continue a turn, newest first.
    pub(crate) fn children(&self, turn: TurnId) -> Summaries {
        self.journal.children(turn, MAX_SUMMARIES)
    }

    /// Whether any turn continues a turn.
    pub(crate) fn is_continued(&self, turn: TurnId) -> Result<bool, JournalError> {
        Ok(!self.journal.children(turn, 1)?.is_empty())
    }

    /// All turns of a session, newest first.
    pub(crate) fn all_session_turns(&self, session: &SessionId) -> Summaries {
        self.journal.last_turns(session, u32::MAX)
    }

    /// A turn with all its data.
    pub(crate) fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, JournalError> {
        self.journal.turn(turn)
    }

    /// The session of an API key with this name, or else with this id.
    pub(crate) fn find_session(
        &self,
        key: Option<&str>,
        name: &str,
    ) -> Result<Option<SessionId>, JournalError> {
        let found = self.journal.find_session(key, name)?;
        Ok(found.map(|session| session.id))
    }

    /// The name of a session.
    pub(crate) fn session_name(&self, session: &SessionId) -> Result<Option<String>, JournalError> {
        self.journal.session_name(session)
    }

    /// Whether a session id exists, under any key.
    pub(crate) fn session_exists(&self, session: &SessionId) -> Result<bool, JournalError> {
        Ok(self.journal.session(session)?.is_some())
    }
}
