//! Readiness: whether the engine accepts requests and the journal is writable.
//!
//! Stopped judging or training makes the server unhealthy, but not unready: chat requests still work.

use std::time::{Duration, Instant};

use clawhost_engine::Engine;
use clawhost_journal::{Journal, JournalError};
use tokio::sync::Mutex;

use crate::control::HealthError;

/// How long the result of a write check is cached. The endpoint needs no key, so callers must not cause writes at will.
const CHECK_TTL: Duration = Duration::from_secs(1);

/// The result of the last journal write check.
#[derive(Default)]
pub(crate) struct Readiness {
    last_check: Mutex<Option<WriteCheck>>,
}

struct WriteCheck {
    at: Instant,
    error: Option<HealthError>,
}

impl Readiness {
    /// The reason why the journal is not writable; `None` if it is.
    pub(crate) async fn journal_error(&self, journal: &Journal) -> Option<HealthError> {
        // The lock is held during the write, so that concurrent callers cause one write.
        let mut last_check = self.last_check.lock().await;
        if let Some(check) = last_check.as_ref()
            && check.at.elapsed() < CHECK_TTL
        {
            return check.error.clone();
        }
        let journal = journal.clone();
        let result = tokio::task::spawn_blocking(move || journal.check_writable()).await;
        let error = match result {
            Ok(result) => result.err().map(|error| unwritable(&error)),
            Err(error) => Some(HealthError {
                summary: "the journal is not writable",
                detail: error.to_string(),
            }),
        };
        let previous = last_check.take().and_then(|check| check.error);
        match (&previous, &error) {
            (None, Some(error)) => tracing::error!(%error, "rejecting chat requests"),
            (Some(_), None) => {
                tracing::info!("the journal is writable again; accepting chat requests")
            }
            _ => {}
        }
        *last_check = Some(WriteCheck {
            at: Instant::now(),
            error: error.clone(),
        });
        error
    }

    /// The reason why chat requests do not work on a server that is not stopping; `None` if they do.
    pub(crate) async fn chat_error(
        &self,
        engine: &Engine,
        journal: &Journal,
    ) -> Option<HealthError> {
        if let Err(detail) = engine.ready() {
            return Some(HealthError {
                summary: "the engine accepts no requests",
                detail,
            });
        }
        self.journal_error(journal).await
    }
}

fn unwritable(error: &JournalError) -> HealthError {
    let summary = match error {
        JournalError::DiskFull { .. } => "the disk of the journal is full",
        _ => "the journal is not writable",
    };
    HealthError {
        summary,
        detail: error.to_string(),
    }
}
