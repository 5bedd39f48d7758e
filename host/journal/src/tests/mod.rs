//! Tests of the journal, with shared builders.

mod choice_groups;
mod concurrency;
mod corruption;
mod environments;
mod experience;
mod export;
mod finalize;
mod forget;
mod hints;
mod judgements;
mod owners;
mod ownership;
mod pairs;
mod plugin_state;
mod recovery;
mod releases;
mod retractions;
mod steps;
mod storage;
mod turns;

use clawhost_chat::{Message, SamplingParams};
use serde_json::json;

use crate::*;

pub(super) fn arrival(session: &str, previous: Option<TurnId>) -> NewRequest {
    let question = vec![Message::user("and now?")];
    NewRequest {
        session: SessionUpsert {
            id: session.into(),
            name: None,
            origin: "header".to_owned(),
            key: Some("home".to_owned()),
            user: None,
            ms: 1_000,
        },
        retract: Vec::new(),
        next_state_of: previous
            .map(|turn| NextState {
                turn,
                messages: question,
                ms: 2_000,
                source: None,
            })
            .into_iter()
            .collect(),
        turns: vec![new_turn(previous)],
    }
}

pub(super) fn new_turn(parent: Option<TurnId>) -> NewTurn {
    NewTurn {
        response_id: "chatcmpl-1".to_owned(),
        choice: 0,
        group: "g1".to_owned(),
        kind: TurnKind::Unknown,
        parent,
        received_ms: 1_000,
        key: Some("home".to_owned()),
        owner: None,
        request_digest: "d1".to_owned(),
        messages: vec![Message::user("what is 7 × 8?")],
        tools: Vec::new(),
        template: serde_json::Map::new(),
        experience: None,
        prompt_ids: vec![1, 2, u32::MAX],
        sampling: SamplingParams {
            temperature: 0.7,
            ..SamplingParams::default()
        }
        .into(),
        adapter_version: 3,
        adapter_digest: "abc".to_owned(),
        model: "clawhost".to_owned(),
        matched: by_header(),
        histories: Vec::new(),
    }
}

/// A request that was matched by a header.
pub(super) fn by_header() -> MatchRecord {
    MatchRecord {
        by: "header".to_owned(),
        ..MatchRecord::default()
    }
}

pub(super) fn vote(score: f32) -> Option<VoteRecord> {
    Some(VoteRecord {
        score,
        rationale: String::new(),
        votes: None,
    })
}

pub(super) fn completion() -> Completion {
    Completion {
        ms: 1_500,
        finish: Finish::Stop,
        reply: "56".into(),
        anchor: Some("a56".to_owned()),
        token_ids: vec![5, 6],
        logprobs: vec![-0.1, -1e-30],
        full_logprobs: vec![-0.2, -0.3],
        forced: Vec::new(),
    }
}

pub(super) fn verdict(reward: f32) -> VerdictRecord {
    VerdictRecord {
        source: "plugin:judge-next-state".to_owned(),
        digest: Some("ff".to_owned()),
        outcome: VerdictOutcome::Verdict {
            reward,
            accept: true,
        },
        votes: vec![vote(1.0), vote(1.0), None],
        rationale: "the user moved on".to_owned(),
        metrics: [("length".to_owned(), 2.0)].into(),
        ms: 3_000,
    }
}

pub(super) fn sample_of(turn: TurnId, reward: f32) -> NewSample {
    NewSample {
        turn,
        reward: Some(reward),
        baseline_key: "home".to_owned(),
        provenance: SampleProvenance {
            components: vec!["ff".to_owned()],
            ..SampleProvenance::default()
        },
    }
}

pub(super) fn step(trained: &[SampleId]) -> NewStep {
    NewStep {
        started_ms: 10,
        ended_ms: 20,
        outcome: StepOutcome::NoSignal,
        reason: Some("constant rewards".to_owned()),
        metrics: json!({ "loss": 0.5 }),
        trained: trained.iter().map(|sample| (*sample, 0.25)).collect(),
        dropped: Vec::new(),
        adapter: None,
        meta: Vec::new(),
        experience: None,
    }
}

pub(super) fn published(trained: &[SampleId], version: u64, parent: u64) -> NewStep {
    NewStep {
        outcome: StepOutcome::Published,
        reason: None,
        adapter: Some(NewAdapter {
            version,
            parent,
            digest: format!("digest-{version}"),
            path: format!("adapters/{version}"),
            provenance: json!({ "samples": trained }),
        }),
        ..step(trained)
    }
}

pub(super) fn feedback(turn: TurnId, score: f32) -> Feedback {
    Feedback {
        turn,
        score: Some(score),
        text: None,
        ms: 4_000,
    }
}

impl Journal {
    /// One complete turn in a session.
    pub(super) fn turn_in(&self, session: &str) -> TurnId {
        let turn = self.record_request(&arrival(session, None)).unwrap()[0];
        self.complete(turn, &completion()).unwrap();
        turn
    }

    /// One complete turn with a next state.
    pub(super) fn ready_turn_in(&self, session: &str) -> TurnId {
        let turn = self.turn_in(session);
        let next = self.record_request(&arrival(session, Some(turn))).unwrap()[0];
        self.complete(next, &completion()).unwrap();
        turn
    }

    /// One queued sample.
    pub(super) fn sample_in(&self, session: &str) -> SampleId {
        let turn = self.ready_turn_in(session);
        self.commit_judgement(
            turn,
            &[verdict(1.0)],
            Some(&sample_of(turn, 1.0)),
            None,
            &[],
        )
        .unwrap()
        .unwrap()
    }

    pub(super) fn record(&self, turn: TurnId) -> TurnRecord {
        self.turn(turn).unwrap().unwrap()
    }
}
