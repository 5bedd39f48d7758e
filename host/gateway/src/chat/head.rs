//! What is known of a reply before its first token: names, times, and the headers that carry them.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use clawhost_journal::now_ms;
use clawhost_policy::Served;
use clawhost_sessions::Arrived;

use crate::versions;

/// The part of a response that all its chunks share.
pub(super) struct Head {
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: i64,
    pub(super) model: String,
    /// Digest of the adapter (of the base model without one): changes exactly when what is served does.
    pub(super) fingerprint: String,
    pub(super) session: String,
    turns: String,
    adapter: String,
}

impl Head {
    pub(super) fn new(id: String, model: String, served: &Served, arrived: &Arrived) -> Self {
        let turns: Vec<String> = arrived.turns.iter().map(ToString::to_string).collect();
        Self {
            id,
            created: now_ms() / 1000,
            model,
            fingerprint: served.digest.clone(),
            session: arrived.session.to_string(),
            turns: turns.join(","),
            adapter: versions::label(served),
        }
    }

    /// Headers that say which session, turns and adapter this reply belongs to.
    pub(super) fn headers(&self) -> HeaderMap {
        [
            ("x-clawhost-session", &self.session),
            ("x-clawhost-turn", &self.turns),
            ("x-clawhost-adapter", &self.adapter),
        ]
        .into_iter()
        .filter_map(|(name, text)| {
            // A session id may be any UTF-8 without control characters; a header carries its bytes.
            let value = HeaderValue::from_bytes(text.as_bytes()).ok()?;
            Some((HeaderName::from_static(name), value))
        })
        .collect()
    }
}
