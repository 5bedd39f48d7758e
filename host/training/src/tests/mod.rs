//! Promises of the trainer, tested through the journal and a tiny model.

use clawhost_journal::{SampleId, SampleRecord, SampleState, SessionId, TurnId};

/// A queued sample of two reply tokens, as a journal would give it.
pub(crate) fn sample(id: i64, reward: f32) -> SampleRecord {
    SampleRecord {
        id: SampleId(id),
        turn: TurnId(id),
        session: SessionId("s".to_owned()),
        group: format!("g{id}"),
        reward,
        baseline_key: "default".to_owned(),
        provenance: serde_json::Value::Null,
        state: SampleState::Queued,
        reason: None,
        step: None,
        advantage: None,
        created_ms: 0,
        prompt_ids: vec![1, 2],
        token_ids: vec![3, 4],
        logprobs: vec![-1.0, -1.0],
        full_logprobs: vec![-1.0, -1.0],
        temperature: 1.0,
        adapter_version: 0,
    }
}
