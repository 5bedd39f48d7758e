//! Whether chat works now: the engine takes requests and the journal takes turns.
//!
//! Judging and training may stand still: that is a fault, and no reason to send requests elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clawhost_journal::JournalError;
use tokio::sync::Mutex;

use crate::gateway::{Fault, Shared};

/// How long the outcome of a write is believed. Whoever asks needs no key, so asking must not cause writes at will.
const BELIEVED: Duration = Duration::from_secs(1);

/// The last write that tried whether the journal takes turns.
#[derive(Default)]
pub(crate) struct Readiness {
    checked: Mutex<Option<Checked>>,
}

struct Checked {
    at: Instant,
    fault: Option<Fault>,
}

impl Readiness {
    /// Why the journal takes no turns, if it takes none.
    pub(crate) async fn journal_fault(&self, shared: &Arc<Shared>) -> Option<Fault> {
        // Held while writing, so that many who ask at once cause one write.
        let mut checked = self.checked.lock().await;
        if let Some(checked) = checked.as_ref()
            && checked.at.elapsed() < BELIEVED
        {
            return checked.fault.clone();
        }
        let journal = shared.journal.clone();
        let written = tokio::task::spawn_blocking(move || journal.check_writable()).await;
        let fault = match written {
            Ok(written) => written.err().map(|error| unwritable(&error)),
            Err(error) => Some(Fault {
                what: "the journal cannot be written",
                why: error.to_string(),
            }),
        };
        let before = checked.take().and_then(|checked| checked.fault);
        match (&before, &fault) {
            (None, Some(fault)) => tracing::error!(%fault, "chat requests are refused"),
            (Some(_), None) => tracing::info!("the journal can be written again"),
            _ => {}
        }
        *checked = Some(Checked {
            at: Instant::now(),
            fault: fault.clone(),
        });
        fault
    }

    /// Why chat does not work, if it does not.
    pub(crate) async fn chat_fault(&self, shared: &Arc<Shared>) -> Option<Fault> {
        if shared.stopping() {
            return Some(Fault {
                what: "the server is stopping",
                why: "it takes no new requests".to_owned(),
            });
        }
        if let Err(why) = shared.engine.ready() {
            return Some(Fault {
                what: "the engine takes no requests",
                why,
            });
        }
        self.journal_fault(shared).await
    }
}

fn unwritable(error: &JournalError) -> Fault {
    let what = match error {
        JournalError::Full { .. } => "the disk of the journal is full",
        _ => "the journal cannot be written",
    };
    Fault {
        what,
        why: error.to_string(),
    }
}
