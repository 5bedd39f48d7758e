//! Why a reply ends before it is complete.

use std::sync::OnceLock;

use crate::connection::Peer;
use crate::shared::Shared;

/// Why the choices of a reply are aborted; shared by all its choices.
pub(super) struct AbortReason {
    reason: OnceLock<&'static str>,
    peer: Peer,
}

impl AbortReason {
    /// For a reply to `peer`.
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            reason: OnceLock::new(),
            peer,
        }
    }

    /// Sets the reason, if none is set yet.
    pub(super) fn set(&self, reason: &'static str) {
        // The first reason is the cause; later ones follow from it.
        let _ = self.reason.set(reason);
    }

    /// The reason; without one that was set, what the connection and the server tell.
    pub(super) fn get(&self, shared: &Shared) -> &'static str {
        match self.reason.get() {
            Some(reason) => reason,
            None if std::thread::panicking() => "the server panicked",
            None if self.peer.has_stalled() => "client stopped reading",
            None if shared.stopping() => "server stopped",
            None => "client disconnected",
        }
    }
}
