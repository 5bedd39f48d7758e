//! Errors of this crate.

use clawhost_journal::{JournalError, SessionId};

/// Maximum length of a session id from a client, in bytes.
pub(crate) const SESSION_ID_LIMIT: usize = 256;

/// Failure to record a request or a reply.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The journal returned an error.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A request without messages.
    #[error("`messages` is empty: send at least one message")]
    NoMessages,
    /// A request for no choices.
    #[error("`n` is 0: request at least 1 choice")]
    NoChoices,
    /// A session id that is too long or not printable.
    #[error(
        "invalid session id of {length} bytes: send at most {limit} bytes without control characters"
    )]
    SessionId {
        /// Length in bytes.
        length: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// A session that does not exist or was deleted.
    #[error("no session `{0}`: GET /v1/sessions lists the existing sessions")]
    UnknownSession(SessionId),
}
