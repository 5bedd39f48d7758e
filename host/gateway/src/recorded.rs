//! What a client is told when the journal or the sessions room refuses.
//!
//! A full disk is the operator's problem and worth a retry; an unknown or ended turn is the client's.

use axum::http::StatusCode;
use clawhost_journal::JournalError;
use clawhost_sessions::SessionError;

use crate::error::ApiError;

/// The answer to a refusal of the journal.
pub(crate) fn refusal(error: &JournalError) -> ApiError {
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
        JournalError::NothingBefore => {
            ApiError::conflict("nothing_to_roll_back", error.to_string())
        }
        JournalError::TurnEnded { .. }
        | JournalError::AlreadyJudged { .. }
        | JournalError::NotReady { .. } => ApiError::conflict("wrong_state", error.to_string()),
        JournalError::Invalid(_) => ApiError::bad_request(error.to_string()),
        _ => {
            tracing::error!(%error, "the journal refused");
            let message = if error.may_pass() {
                "the server cannot record this now (its disk is full or the journal is busy), and it does \
                 not serve what it cannot record; try again later"
            } else {
                "the server cannot record this because its journal is not usable; the operator finds the \
                 reason in the log"
            };
            ApiError::unavailable("journal_unavailable", message)
        }
    }
}

/// The answer to a refusal of the sessions room.
pub(crate) fn session_refusal(error: &SessionError) -> ApiError {
    match error {
        SessionError::Journal(error) => refusal(error),
        other => ApiError::with_status(
            StatusCode::BAD_REQUEST,
            "invalid_session",
            other.to_string(),
        ),
    }
}
