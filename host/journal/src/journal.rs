//! The journal and its acts.

use crate::error::JournalError;
use crate::export::Export;
use crate::ids::*;
use crate::records::*;
use std::path::Path;
/// The durable record.
#[derive(Clone)]
pub struct Journal {
    changed: std::sync::Arc<tokio::sync::watch::Sender<u64>>,
}
fn soon<T>() -> Result<T, JournalError> {
    Err(JournalError::Invalid(
        "this act of the journal is not built yet".to_owned(),
    ))
}
#[allow(
    unused_variables,
    missing_docs,
    reason = "signatures first, bodies follow"
)]
impl Journal {
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        soon()
    }
    pub fn in_memory() -> Result<Journal, JournalError> {
        soon()
    }
    pub fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changed.subscribe()
    }
    pub fn arrive(&self, a: &Arrival) -> Result<Vec<TurnId>, JournalError> {
        soon()
    }
    pub fn complete(&self, turn: TurnId, c: &Completion) -> Result<(), JournalError> {
        soon()
    }
    pub fn fail(
        &self,
        turn: TurnId,
        reason: &str,
        partial: Option<&Completion>,
    ) -> Result<(), JournalError> {
        soon()
    }
    pub fn recover(&self) -> Result<u64, JournalError> {
        soon()
    }
    pub fn end_session(&self, s: &SessionId, reason: &str) -> Result<(), JournalError> {
        soon()
    }
    pub fn idle_sessions(&self, before_ms: i64) -> Result<Vec<SessionId>, JournalError> {
        soon()
    }
    pub fn forget_session(&self, s: &SessionId) -> Result<Forgotten, JournalError> {
        soon()
    }
    pub fn turns_by_anchor(
        &self,
        anchor: &str,
        limit: u32,
    ) -> Result<Vec<TurnRecord>, JournalError> {
        soon()
    }
    pub fn turns_by_request(
        &self,
        request_digest: &str,
        since_ms: i64,
    ) -> Result<Vec<TurnRecord>, JournalError> {
        soon()
    }
    pub fn add_feedback(&self, f: &Feedback) -> Result<i64, JournalError> {
        soon()
    }
    pub fn ready_for_judging(&self, limit: u32) -> Result<Vec<TurnRecord>, JournalError> {
        soon()
    }
    pub fn commit_judgement(
        &self,
        turn: impl Into<TurnSeen>,
        verdicts: &[NewVerdict],
        sample: Option<&NewSample>,
        skipped: Option<&str>,
        receipts: &[serde_json::Value],
    ) -> Result<Option<SampleId>, JournalError> {
        soon()
    }
    pub fn queued_samples(&self, limit: u32) -> Result<Vec<SampleRecord>, JournalError> {
        soon()
    }
    pub fn queued_count(&self) -> Result<u64, JournalError> {
        soon()
    }
    pub fn oldest_queued_ms(&self) -> Result<Option<i64>, JournalError> {
        soon()
    }
    pub fn commit_step(&self, s: &NewStep) -> Result<StepId, JournalError> {
        soon()
    }
    pub fn active_adapter(&self) -> Result<Option<AdapterRow>, JournalError> {
        soon()
    }
    pub fn adapters(&self) -> Result<Vec<AdapterRow>, JournalError> {
        soon()
    }
    pub fn meta(&self, key: &str) -> Result<Option<String>, JournalError> {
        soon()
    }
    pub fn set_meta(&self, key: &str, value: &str) -> Result<(), JournalError> {
        soon()
    }
    pub fn turn(&self, t: TurnId) -> Result<Option<TurnRecord>, JournalError> {
        soon()
    }
    pub fn turns_of_response(&self, response_id: &str) -> Result<Vec<TurnRecord>, JournalError> {
        soon()
    }
    pub fn session(&self, s: &SessionId) -> Result<Option<SessionRecord>, JournalError> {
        soon()
    }
    pub fn sessions(&self, limit: u32) -> Result<Vec<SessionRecord>, JournalError> {
        soon()
    }
    pub fn session_turns(&self, s: &SessionId) -> Result<Vec<TurnRecord>, JournalError> {
        soon()
    }
    pub fn verdicts(&self, t: TurnId) -> Result<Vec<VerdictRecord>, JournalError> {
        soon()
    }
    pub fn samples_of(&self, t: TurnId) -> Result<Vec<SampleRecord>, JournalError> {
        soon()
    }
    pub fn steps(&self, limit: u32) -> Result<Vec<StepRecord>, JournalError> {
        soon()
    }
    pub fn step(&self, s: StepId) -> Result<Option<StepRecord>, JournalError> {
        soon()
    }
    pub fn counts(&self) -> Result<Counts, JournalError> {
        soon()
    }
    pub fn export(&self, out: &mut dyn std::io::Write, what: Export) -> Result<u64, JournalError> {
        soon()
    }
}
