//! Fake judges, group judges and extractors, and a journal fixture.

use std::sync::{Arc, Mutex};

use clawhost_journal::{
    Feedback, Journal, NewRequest, NewTurn, NextState, SessionId, SessionUpsert, TurnId, TurnKind,
};
use clawhost_plugins::{
    CallContext, CallResult, Decision, Extraction, Fault, FaultKind, Hint, JudgeResult, Outcome,
    Placement, PluginErrorKind, Profile, Receipt, Trajectory, Verdict, Vote,
};

use crate::judge::{CallFuture, Component, GroupJudge, HintExtractor, Judge, TurnFilter};
use crate::slots::JudgeSet;

type JudgeFn = dyn Fn(&CallContext, &Trajectory) -> Result<Verdict, Fault> + Send + Sync;

/// A judge that calls a closure and records its calls.
pub(super) struct FakeJudge {
    answer: Box<JudgeFn>,
    pub(super) calls: Mutex<Vec<CallContext>>,
}

impl FakeJudge {
    pub(super) fn new(
        answer: impl Fn(&CallContext, &Trajectory) -> Result<Verdict, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            answer: Box::new(answer),
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

    pub(super) fn call_count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Component for FakeJudge {
    fn name(&self) -> &str {
        "fake-judge"
    }

    fn digest(&self) -> &str {
        "00ff"
    }
}

impl Judge for FakeJudge {
    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        _turn: u32,
    ) -> CallFuture<'a, JudgeResult> {
        let outcome = (self.answer)(&call, trajectory);
        let receipt = receipt(self, "judge-plugin", &outcome);
        self.calls.lock().unwrap().push(call);
        Box::pin(std::future::ready(JudgeResult { outcome, receipt }))
    }
}

/// A judge whose verdict cannot be recorded, because the host panics on its digest.
pub(super) struct PanickingJudge(pub(super) Arc<FakeJudge>);

impl Component for PanickingJudge {
    fn name(&self) -> &str {
        "panicking-judge"
    }

    fn digest(&self) -> &str {
        panic!("no digest")
    }
}

impl Judge for PanickingJudge {
    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> CallFuture<'a, JudgeResult> {
        self.0.score(call, trajectory, turn)
    }
}

/// A verdict with one vote behind it.
pub(super) fn verdict(reward: f32) -> Verdict {
    Verdict {
        reward,
        accept: true,
        votes: vec![Vote {
            score: reward,
            rationale: String::new(),
        }],
        rationale: format!("because {reward}"),
        metrics: Vec::new(),
    }
}

/// The verdict of a judge that counts votes and has none.
pub(super) fn abstention() -> Verdict {
    Verdict {
        reward: 0.0,
        accept: true,
        votes: Vec::new(),
        rationale: "nothing speaks for or against it".to_owned(),
        metrics: Vec::new(),
    }
}

pub(super) fn transient() -> Fault {
    Fault::new(FaultKind::PluginError {
        kind: PluginErrorKind::Transient,
        message: "later".to_owned(),
    })
}

type GroupJudgeFn = dyn Fn(&[Trajectory]) -> Result<Vec<Verdict>, Fault> + Send + Sync;

/// A group judge that calls a closure and records the choices it saw.
pub(super) struct FakeGroupJudge {
    answer: Box<GroupJudgeFn>,
    /// The metadata `turn` of each choice, call by call, and the sample id of the call.
    pub(super) seen: Mutex<Vec<(String, Vec<String>)>>,
}

impl FakeGroupJudge {
    pub(super) fn new(
        answer: impl Fn(&[Trajectory]) -> Result<Vec<Verdict>, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            answer: Box::new(answer),
            seen: Mutex::new(Vec::new()),
        })
    }

    /// The rewards in the order of the choices.
    pub(super) fn of(rewards: &'static [f32]) -> Arc<Self> {
        Self::new(move |group| {
            assert_eq!(group.len(), rewards.len());
            Ok(rewards.iter().map(|reward| verdict(*reward)).collect())
        })
    }

    pub(super) fn call_count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Component for FakeGroupJudge {
    fn name(&self) -> &str {
        "fake-group-judge"
    }

    fn digest(&self) -> &str {
        "00aa"
    }
}

impl GroupJudge for FakeGroupJudge {
    fn score_group<'a>(
        &'a self,
        call: CallContext,
        group: &'a [Trajectory],
    ) -> CallFuture<'a, CallResult<Vec<Verdict>>> {
        let turn = |trajectory: &Trajectory| {
            assert_eq!(
                trajectory.turns.len(),
                1,
                "a choice is judged without earlier turns"
            );
            let entry = trajectory.metadata.iter().find(|(key, _)| key == "turn");
            entry.unwrap().1.clone()
        };
        let turns = group.iter().map(turn).collect();
        self.seen.lock().unwrap().push((call.sample_id, turns));
        let outcome = (self.answer)(group);
        let receipt = receipt(self, "group-judge-plugin", &outcome);
        Box::pin(std::future::ready(CallResult { outcome, receipt }))
    }
}

/// A hint extractor that returns the last message of the next state as a hint, and records it.
pub(super) struct FakeHintExtractor {
    fault: Option<FaultKind>,
    pub(super) seen: Mutex<Vec<String>>,
}

impl FakeHintExtractor {
    pub(super) fn new(fault: Option<FaultKind>) -> Arc<Self> {
        Arc::new(Self {
            fault,
            seen: Mutex::new(Vec::new()),
        })
    }
}

impl Component for FakeHintExtractor {
    fn name(&self) -> &str {
        "fake-extractor"
    }

    fn digest(&self) -> &str {
        "00bb"
    }
}

impl HintExtractor for FakeHintExtractor {
    fn extract<'a>(
        &'a self,
        _call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> CallFuture<'a, CallResult<Extraction>> {
        let followed = &trajectory.turns[turn as usize].next_state;
        let text = followed
            .last()
            .map(|m| m.visible_text())
            .unwrap_or_default();
        self.seen.lock().unwrap().push(text.clone());
        let outcome = match &self.fault {
            Some(kind) => Err(Fault::new(kind.clone())),
            None => Ok(Extraction {
                hint: (!text.contains("thanks")).then(|| Hint {
                    text: format!("mind: {text}"),
                    placement: Placement::LastUser,
                    confidence: 0.5,
                }),
                metrics: Vec::new(),
            }),
        };
        let receipt = receipt(self, "hint-plugin", &outcome);
        Box::pin(std::future::ready(CallResult { outcome, receipt }))
    }
}

type FilterFn = dyn Fn(&Trajectory) -> Result<bool, Fault> + Send + Sync;

/// A filter that calls a closure, drops what it returns false for, and records the rewards that it was shown.
pub(super) struct FakeFilter {
    answer: Box<FilterFn>,
    pub(super) seen: Mutex<Vec<Option<f32>>>,
}

impl FakeFilter {
    pub(super) fn new(
        answer: impl Fn(&Trajectory) -> Result<bool, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            answer: Box::new(answer),
            seen: Mutex::new(Vec::new()),
        })
    }
}

impl Component for FakeFilter {
    fn name(&self) -> &str {
        "fake-filter"
    }

    fn digest(&self) -> &str {
        "00cc"
    }
}

impl TurnFilter for FakeFilter {
    fn decide<'a>(
        &'a self,
        _call: CallContext,
        trajectory: &'a Trajectory,
        _turn: u32,
        reward: Option<f32>,
    ) -> CallFuture<'a, CallResult<Decision>> {
        self.seen.lock().unwrap().push(reward);
        let outcome = (self.answer)(trajectory).map(|keep| Decision {
            keep,
            reason: "not for training".to_owned(),
            metrics: Vec::new(),
        });
        let receipt = receipt(self, "filter-plugin", &outcome);
        Box::pin(std::future::ready(CallResult { outcome, receipt }))
    }
}

/// A set with a single judge.
pub(super) fn one_judge(judge: Arc<dyn Judge>) -> JudgeSet {
    JudgeSet {
        judges: vec![judge],
        ..JudgeSet::default()
    }
}

fn receipt<T>(
    component: &impl Component,
    world: &'static str,
    outcome: &Result<T, Fault>,
) -> Receipt {
    Receipt {
        plugin: component.name().to_owned(),
        digest: component.digest().to_owned(),
        world,
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

/// An in-memory journal with one session.
pub(super) struct Fixture {
    pub(super) journal: Journal,
    turn_count: Mutex<i64>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self {
            journal: Journal::in_memory().unwrap(),
            turn_count: Mutex::new(0),
        }
    }

    fn arrival(&self, next_state_of: Vec<NextState>, turns: Vec<NewTurn>) -> NewRequest {
        NewRequest {
            session: SessionUpsert {
                id: SessionId("s".to_owned()),
                name: None,
                origin: "new".to_owned(),
                key: Some("laptop".to_owned()),
                user: Some("ann".to_owned()),
                ms: 1,
            },
            retract: Vec::new(),
            next_state_of,
            turns,
        }
    }

    fn new_turn(&self) -> NewTurn {
        let mut turn_count = self.turn_count.lock().unwrap();
        *turn_count += 1;
        let template = super::turn(*turn_count);
        NewTurn {
            response_id: template.response_id,
            choice: 0,
            group: template.group,
            kind: TurnKind::Unknown,
            parent: None,
            received_ms: 1,
            key: Some("laptop".to_owned()),
            owner: None,
            request_digest: format!("d{turn_count}"),
            messages: template.messages,
            tools: template.tools,
            template: template.template,
            experience: None,
            prompt_ids: vec![1, 2],
            sampling: template.sampling,
            adapter_version: 0,
            adapter_digest: String::new(),
            model: "m".to_owned(),
            matched: template.matched,
            histories: Vec::new(),
        }
    }

    /// Adds a complete turn without a next state.
    pub(super) fn add_turn_with(
        &self,
        change: impl FnOnce(&mut clawhost_journal::Completion),
    ) -> TurnId {
        let arrival = self.arrival(Vec::new(), vec![self.new_turn()]);
        let id = self.journal.record_request(&arrival).unwrap()[0];
        let mut completion = super::completion("a reply");
        change(&mut completion);
        self.journal.complete(id, &completion).unwrap();
        id
    }

    /// Adds a complete child turn with a next state.
    pub(super) fn add_child_turn(&self, parent: TurnId, next: &str) -> TurnId {
        let turn = NewTurn {
            parent: Some(parent),
            ..self.new_turn()
        };
        let arrival = self.arrival(Vec::new(), vec![turn]);
        let id = self.journal.record_request(&arrival).unwrap()[0];
        let completion = super::completion("a reply");
        self.journal.complete(id, &completion).unwrap();
        self.add_next_state(id, next);
        id
    }

    /// Adds a next state with this user message.
    pub(super) fn add_next_state(&self, turn: TurnId, text: &str) {
        let next = NextState {
            turn,
            messages: vec![clawhost_chat::Message::user(text)],
            ms: 2,
            source: None,
        };
        self.journal
            .record_request(&self.arrival(vec![next], Vec::new()))
            .unwrap();
    }

    /// Retracts the next state.
    pub(super) fn retract(&self, turn: TurnId) {
        let mut arrival = self.arrival(Vec::new(), Vec::new());
        arrival.retract.push(clawhost_journal::NewRetraction {
            turn,
            reason: "left out".to_owned(),
            ms: 3,
        });
        self.journal.record_request(&arrival).unwrap();
    }

    /// Adds a request with `count` complete choices; `change` is called with each choice's index.
    pub(super) fn add_choices(
        &self,
        count: u32,
        change: impl Fn(u32, &mut clawhost_journal::Completion),
    ) -> Vec<TurnId> {
        let template = self.new_turn();
        let turns = (0..count)
            .map(|choice| NewTurn {
                choice,
                ..template.clone()
            })
            .collect();
        let turns = self
            .journal
            .record_request(&self.arrival(Vec::new(), turns))
            .unwrap();
        for (choice, turn) in (0..).zip(&turns) {
            let mut completion = super::completion(&format!("reply {choice}"));
            change(choice, &mut completion);
            self.journal.complete(*turn, &completion).unwrap();
        }
        turns
    }

    /// Adds a complete turn with a next state.
    pub(super) fn add_turn(&self, next: &str) -> TurnId {
        let turn = self.add_turn_with(|_| ());
        self.add_next_state(turn, next);
        turn
    }

    pub(super) fn add_feedback(&self, turn: TurnId, score: Option<f32>, text: Option<&str>) {
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
