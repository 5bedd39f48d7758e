//! A judge made of a closure, and a journal with turns to judge.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use clawhost_journal::{
    Arrival, Feedback, Journal, NewTurn, NextState, SessionId, SessionUpsert, TurnId, TurnKind,
};
use clawhost_plugins::{
    CallContext, Fault, FaultKind, Judged, Outcome, PluginErrorKind, Profile, Receipt, Trajectory,
    Verdict,
};
use serde_json::json;

use crate::judge::Judge;

type Says = dyn Fn(&CallContext, &Trajectory) -> Result<Verdict, Fault> + Send + Sync;

/// A judge that answers with a closure and remembers how it was called.
pub(super) struct StandIn {
    says: Box<Says>,
    pub(super) calls: Mutex<Vec<CallContext>>,
}

impl StandIn {
    pub(super) fn new(
        says: impl Fn(&CallContext, &Trajectory) -> Result<Verdict, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            says: Box::new(says),
            calls: Mutex::new(Vec::new()),
        })
    }

    /// +1 for thanks, −1 for anything else.
    pub(super) fn thanks() -> Arc<Self> {
        Self::new(|_, trajectory| {
            let last = trajectory.turns.last().unwrap();
            let text = last.next_state.last().map(|m| m.visible_text());
            let thanks = text.is_some_and(|text| text.contains("thanks"));
            Ok(verdict(if thanks { 1.0 } else { -1.0 }))
        })
    }

    pub(super) fn faulty(kind: FaultKind) -> Arc<Self> {
        Self::new(move |_, _| Err(Fault::new(kind.clone())))
    }

    pub(super) fn called(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Judge for StandIn {
    fn name(&self) -> &str {
        "stand-in"
    }

    fn digest(&self) -> &str {
        "00ff"
    }

    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        _turn: u32,
    ) -> Pin<Box<dyn Future<Output = Judged> + Send + 'a>> {
        let outcome = (self.says)(&call, trajectory);
        let receipt = receipt(&outcome);
        self.calls.lock().unwrap().push(call);
        Box::pin(std::future::ready(Judged { outcome, receipt }))
    }
}

pub(super) fn verdict(reward: f32) -> Verdict {
    Verdict {
        reward,
        accept: true,
        votes: Vec::new(),
        rationale: format!("because {reward}"),
        metrics: Vec::new(),
    }
}

pub(super) fn transient() -> Fault {
    Fault::new(FaultKind::PluginError {
        kind: PluginErrorKind::Transient,
        message: "later".to_owned(),
    })
}

fn receipt(outcome: &Result<Verdict, Fault>) -> Receipt {
    Receipt {
        plugin: "stand-in".to_owned(),
        digest: "00ff".to_owned(),
        world: "judge-plugin",
        call: "c".to_owned(),
        profile: Profile::Deterministic,
        ticks: 0,
        fuel: None,
        peak_memory_bytes: 0,
        host_calls: 0,
        http_calls: 0,
        model_calls: 0,
        model_tokens: 0,
        log_lines_dropped: 0,
        queued_us: 0,
        wall_us: 0,
        outcome: outcome.as_ref().map_or_else(Outcome::of, |_| Outcome::Ok),
    }
}

/// A journal in memory with one session.
pub(super) struct Desk {
    pub(super) journal: Journal,
    talked: Mutex<i64>,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            journal: Journal::in_memory().unwrap(),
            talked: Mutex::new(0),
        }
    }

    fn arrival(&self, next_state_of: Vec<NextState>, turns: Vec<NewTurn>) -> Arrival {
        Arrival {
            session: SessionUpsert {
                id: SessionId("s".to_owned()),
                origin: "new".to_owned(),
                key: Some("laptop".to_owned()),
                user: Some("ann".to_owned()),
                ms: 1,
            },
            next_state_of,
            turns,
        }
    }

    fn new_turn(&self) -> NewTurn {
        let mut talked = self.talked.lock().unwrap();
        *talked += 1;
        let template = super::turn(*talked);
        NewTurn {
            response_id: template.response_id,
            choice: 0,
            group: template.group,
            kind: TurnKind::Unknown,
            parent: None,
            received_ms: 1,
            key: Some("laptop".to_owned()),
            request_digest: format!("d{talked}"),
            messages: template.messages,
            tools: template.tools,
            prompt_ids: vec![1, 2],
            sampling: json!({}),
            temperature: 1.0,
            adapter_version: 0,
            adapter_digest: String::new(),
            model: "m".to_owned(),
            matched: json!({}),
            histories: Vec::new(),
        }
    }

    /// A complete turn after which nothing was said yet.
    pub(super) fn replied(&self, change: impl FnOnce(&mut clawhost_journal::Completion)) -> TurnId {
        let arrival = self.arrival(Vec::new(), vec![self.new_turn()]);
        let id = self.journal.arrive(&arrival).unwrap()[0];
        let mut completion = super::completion("a reply");
        change(&mut completion);
        self.journal.complete(id, &completion).unwrap();
        id
    }

    /// What the user said next.
    pub(super) fn then(&self, turn: TurnId, text: &str) {
        let next = NextState {
            turn,
            messages: json!([{"role": "user", "content": text}]),
            ms: 2,
        };
        self.journal
            .arrive(&self.arrival(vec![next], Vec::new()))
            .unwrap();
    }

    /// A complete turn and what the user said next.
    pub(super) fn turn(&self, next: &str) -> TurnId {
        let turn = self.replied(|_| ());
        self.then(turn, next);
        turn
    }

    pub(super) fn feedback(&self, turn: TurnId, score: Option<f32>, text: Option<&str>) {
        self.journal
            .add_feedback(&Feedback {
                turn,
                score,
                text: text.map(str::to_owned),
                ms: 3,
            })
            .unwrap();
    }
}
