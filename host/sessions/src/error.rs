//! What can go wrong while collecting, in words that a client or an operator can act on.

use clawhost_journal::{JournalError, SessionId};

/// Longest session id taken from a client, in bytes.
pub(crate) const SESSION_ID_LIMIT: usize = 256;

/// Failure to collect a turn.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The record could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A request without messages.
    #[error("`messages` is empty: send at least one message")]
    NoMessages,
    /// A request for no choices.
    #[error("`n` is 0: ask for at least 1 choice")]
    NoChoices,
    /// A session id that is too long or not printable.
    #[error(
        "session id of {length} bytes is not usable: send at most {limit} bytes without control characters"
    )]
    SessionId {
        /// Bytes received.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A session that was never collected, or was forgotten.
    #[error("no session `{0}`: GET /v1/sessions lists those that exist")]
    UnknownSession(SessionId),
}
