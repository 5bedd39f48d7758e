//! API errors for errors of the journal and of the sessions crate.
//!
//! A full disk is a 503 that the client may retry; an unknown or ended turn is the client's error.

use axum::http::StatusCode;
use clawhost_journal::JournalError;
use clawhost_sessions::SessionError;

use crate::error::ApiError;

impl From<JournalError> for ApiError {
    fn from(error: JournalError) -> Self {
        match &error {
            JournalError::UnknownTurn { .. } => Self::not_found("unknown_turn", error.to_string()),
            JournalError::UnknownSession { .. } => {
                Self::not_found("unknown_session", error.to_string())
            }
            JournalError::UnknownResponse { .. } => {
                Self::not_found("response_not_found", error.to_string())
            }
            JournalError::UnknownAdapter { .. } => {
                Self::not_found("unknown_adapter", error.to_string())
            }
            JournalError::VersionOfAnotherOwner { .. } => {
                Self::conflict("version_of_another_owner", error.to_string())
            }
            JournalError::VersionPinned { .. } => {
                Self::conflict("version_pinned", error.to_string())
            }
            JournalError::NoPreviousVersion => {
                Self::conflict("nothing_to_roll_back", error.to_string())
            }
            JournalError::TurnEnded { .. }
            | JournalError::AlreadyJudged { .. }
            | JournalError::NotReady { .. } => Self::conflict("wrong_state", error.to_string()),
            JournalError::Invalid(_) => Self::bad_request(error.to_string()),
            _ => {
                tracing::error!(%error, "journal error");
                let message = if error.is_retryable() {
                    "the request was rejected because it cannot be recorded now (the disk is full or the journal is busy); \
                 try again later"
                } else {
                    "the request was rejected because the journal is not usable; see the server log for the cause"
                };
                Self::unavailable("journal_unavailable", message)
            }
        }
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Journal(error) => error.into(),
            other => Self::with_status(
                StatusCode::BAD_REQUEST,
                "invalid_session",
                other.to_string(),
            ),
        }
    }
}
