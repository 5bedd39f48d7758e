//! A request to decide about, with what its decision reads. `decision`, `opening`, `retry`, `user_messages` and
//! `assignment` are the parts of the decision.

use clawhost_config::SessionOptions;
use clawhost_journal::{SessionId, TurnKind};

use crate::digests::request_digest;
use crate::lookup::{Caller, Lookup};
use crate::normalize::{NormalizedMessage, normalize_all};
use crate::request::IncomingRequest;

/// A session that the client named.
pub(crate) struct ExplicitSession {
    /// The session; not in the journal yet if its name is new.
    pub(crate) id: SessionId,
    /// Its name.
    pub(crate) name: String,
    /// `header` or `body`.
    pub(crate) origin: &'static str,
}

/// Decides about one request.
pub(crate) struct RequestMatcher<'a> {
    pub(crate) lookup: Lookup<'a>,
    pub(crate) options: &'a SessionOptions,
    pub(crate) incoming: &'a IncomingRequest,
    pub(crate) now_ms: i64,
    pub(crate) normalized: Vec<NormalizedMessage>,
    pub(crate) named: Option<ExplicitSession>,
    pub(crate) kind: TurnKind,
}

impl<'a> RequestMatcher<'a> {
    /// Prepares a request.
    pub(crate) fn new(
        lookup: Lookup<'a>,
        options: &'a SessionOptions,
        incoming: &'a IncomingRequest,
        named: Option<ExplicitSession>,
        now_ms: i64,
    ) -> Self {
        Self {
            lookup,
            options,
            incoming,
            now_ms,
            normalized: normalize_all(&incoming.messages),
            named,
            kind: declared_kind(incoming),
        }
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller {
            key: self.incoming.key.as_deref(),
            user: self.incoming.user.as_deref(),
            trace: self.incoming.trace.as_deref(),
            request: self.incoming.request_id.as_deref(),
        }
    }

    pub(crate) fn digest(&self, without: Option<usize>) -> String {
        let kept = self
            .normalized
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != without)
            .map(|(_, message)| message);
        request_digest(kept, &self.incoming.tools)
    }

    /// Digest of a part of the request.
    pub(crate) fn digest_of(&self, messages: &[NormalizedMessage]) -> String {
        request_digest(messages.iter(), &self.incoming.tools)
    }
}

fn declared_kind(incoming: &IncomingRequest) -> TurnKind {
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
