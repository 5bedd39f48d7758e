//! API errors for errors of the journal and of the sessions crate.
//!
//! A full disk is a 503 that the client may retry; an unknown or ended turn is the client's error.

use axum::http::StatusCode;
use clawhost_journal::JournalError;
use clawhost_sessions::SessionError;

use crate::error::ApiError;

/// The API error for a journal error.
pub(crate) fn from_journal(error: &JournalError) -> ApiError {
    match error {
        JournalError::UnknownTurn { .. } => ApiError::not_found("unknown_turn", error.to_string()),
        JournalError::UnknownSession { .. } => {
            ApiError::not_found("unknown_session", error.to_string())
        }
        JournalError::UnknownResponse { .. } => {
            ApiError::not_found("response_not_found", error.to_string())
        }
        JournalError::UnknownAdapter { .. } => {
            ApiError::not_found("unknown_adapter", error.to_string())
        }
        JournalError::VersionPinned { .. } => {
            ApiError::conflict("version_pinned", error.to_string())
        }
        JournalError::NoPreviousVersion => {
            ApiError::conflict("nothing_to_roll_back", error.to_string())
        }
        JournalError::TurnEnded { .. }
        | JournalError::AlreadyJudged { .. }
        | JournalError::NotReady { .. } => ApiError::conflict("wrong_state", error.to_string()),
        JournalError::Invalid(_) => ApiError::bad_request(error.to_string()),
        _ => {
            tracing::error!(%error, "journal error");
            let message = if error.is_retryable() {
                "the request was rejected because it cannot be recorded now (the disk is full or the journal is busy); \
                 try again later"
            } else {
                "the request was rejected because the journal is not usable; see the server log for the cause"
            };
            ApiError::unavailable("journal_unavailable", message)
        }
    }
}

/// The API error for a sessions error.
pub(crate) fn from_sessions(error: &SessionError) -> ApiError {
    match error {
        SessionError::Journal(error) => from_journal(error),
        other => ApiError::with_status(
            StatusCode::BAD_REQUEST,
            "invalid_session",
            other.to_string(),
        ),
    }
}
