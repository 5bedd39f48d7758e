//! Tests of judging through the journal, with fake judges.

use clawhost_chat::Message;
use clawhost_journal::{
    Completion, Finish, JudgingState, MatchRecord, SamplingRecord, SessionId, TurnId, TurnKind,
    TurnRecord, TurnState,
};
use clawhost_plugins::{HostOptions, PluginHost, PluginThreads};

mod experience;
mod fakes;
mod filters;
mod group;
mod hinted_samples;
mod hints;
mod rejudge;
mod rewards;
mod session_end;
mod slots;
mod worker;

/// The threads of a host that has no plugins: fakes are called on them as plugins are.
pub(crate) fn plugin_threads() -> PluginThreads {
    let host = PluginHost::new(HostOptions::default()).unwrap();
    host.threads().clone()
}

/// A complete turn of session `s`, as the journal returns it.
pub(crate) fn turn(id: i64) -> TurnRecord {
    TurnRecord {
        id: TurnId(id),
        session: SessionId("s".to_owned()),
        seq: 0,
        response_id: format!("r{id}"),
        choice: 0,
        group: format!("g{id}"),
        kind: TurnKind::Unknown,
        parent: None,
        received_ms: 0,
        key: None,
        owner: None,
        request_digest: String::new(),
        messages: vec![Message::user("hi")],
        tools: Vec::new(),
        template: serde_json::Map::new(),
        experience: None,
        prompt_ids: vec![1],
        sampling: SamplingRecord::default(),
        temperature: 1.0,
        adapter_version: 0,
        adapter_digest: String::new(),
        model: "m".to_owned(),
        matched: MatchRecord::default(),
        state: TurnState::Complete,
        completion: Some(completion(&format!("reply {id}"))),
        next_state: None,
        next_ms: None,
        next_source: None,
        retractions: Vec::new(),
        next_judged: false,
        judging: JudgingState::Waiting,
        reason: None,
        feedback: Vec::new(),
        feedback_judged: 0,
    }
}

/// A finished reply of two tokens.
pub(crate) fn completion(text: &str) -> Completion {
    Completion {
        ms: 1,
        finish: Finish::Stop,
        reply: text.into(),
        anchor: None,
        token_ids: vec![5, 6],
        logprobs: vec![-0.5, -0.5],
        full_logprobs: vec![-0.5, -0.5],
        forced: Vec::new(),
    }
}
