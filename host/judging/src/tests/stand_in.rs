//! A judge made of a closure, and a journal with turns to judge.

use std::sync::{Arc, Mutex};

use clawhost_journal::{
    Arrival, Feedback, Journal, NewTurn, NextState, SessionId, SessionUpsert, TurnId, TurnKind,
};
use clawhost_plugins::{
    CallContext, Called, Extraction, Fault, FaultKind, Hint, Judged, Outcome, Placement,
    PluginErrorKind, Profile, Receipt, Trajectory, Verdict, Vote,
};
use serde_json::json;

use crate::judge::{Answer, Asked, GroupJudge, HintExtractor, Judge};
use crate::seats::Seated;

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

impl Asked for StandIn {
    fn name(&self) -> &str {
        "stand-in"
    }

    fn digest(&self) -> &str {
        "00ff"
    }
}

impl Judge for StandIn {
    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        _turn: u32,
    ) -> Answer<'a, Judged> {
        let outcome = (self.says)(&call, trajectory);
        let receipt = receipt(self, "judge-plugin", &outcome);
        self.calls.lock().unwrap().push(call);
        Box::pin(std::future::ready(Judged { outcome, receipt }))
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

/// What a judge gives that counts votes and has none.
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

type Ranks = dyn Fn(&[Trajectory]) -> Result<Vec<Verdict>, Fault> + Send + Sync;

/// A group judge that answers with a closure and remembers which choices it saw.
pub(super) struct Ranking {
    says: Box<Ranks>,
    /// The metadata `turn` of each choice, call by call, and the sample id of the call.
    pub(super) seen: Mutex<Vec<(String, Vec<String>)>>,
}

impl Ranking {
    pub(super) fn new(
        says: impl Fn(&[Trajectory]) -> Result<Vec<Verdict>, Fault> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            says: Box::new(says),
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

    pub(super) fn called(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Asked for Ranking {
    fn name(&self) -> &str {
        "ranking"
    }

    fn digest(&self) -> &str {
        "00aa"
    }
}

impl GroupJudge for Ranking {
    fn score_group<'a>(
        &'a self,
        call: CallContext,
        group: &'a [Trajectory],
    ) -> Answer<'a, Called<Vec<Verdict>>> {
        let turn = |trajectory: &Trajectory| {
            assert_eq!(trajectory.turns.len(), 1, "a choice is shown by itself");
            let found = trajectory.metadata.iter().find(|(key, _)| key == "turn");
            found.unwrap().1.clone()
        };
        let turns = group.iter().map(turn).collect();
        self.seen.lock().unwrap().push((call.sample_id, turns));
        let outcome = (self.says)(group);
        let receipt = receipt(self, "group-judge-plugin", &outcome);
        Box::pin(std::future::ready(Called { outcome, receipt }))
    }
}

/// An extractor that makes a hint of the last thing that followed, and remembers it.
pub(super) struct Advising {
    fault: Option<FaultKind>,
    pub(super) told: Mutex<Vec<String>>,
}

impl Advising {
    pub(super) fn new(fault: Option<FaultKind>) -> Arc<Self> {
        Arc::new(Self {
            fault,
            told: Mutex::new(Vec::new()),
        })
    }
}

impl Asked for Advising {
    fn name(&self) -> &str {
        "advising"
    }

    fn digest(&self) -> &str {
        "00bb"
    }
}

impl HintExtractor for Advising {
    fn extract<'a>(
        &'a self,
        _call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> Answer<'a, Called<Extraction>> {
        let followed = &trajectory.turns[turn as usize].next_state;
        let text = followed
            .last()
            .map(|m| m.visible_text())
            .unwrap_or_default();
        self.told.lock().unwrap().push(text.clone());
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
        Box::pin(std::future::ready(Called { outcome, receipt }))
    }
}

/// One judge.
pub(super) fn seated(judge: Arc<dyn Judge>) -> Seated {
    Seated {
        judges: vec![judge],
        ..Seated::default()
    }
}

fn receipt<T>(asked: &impl Asked, world: &'static str, outcome: &Result<T, Fault>) -> Receipt {
    Receipt {
        plugin: asked.name().to_owned(),
        digest: asked.digest().to_owned(),
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
            template: template.template,
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

    /// A complete turn that goes on from another one, and what the user said next.
    pub(super) fn turn_after(&self, parent: TurnId, next: &str) -> TurnId {
        let turn = NewTurn {
            parent: Some(parent),
            ..self.new_turn()
        };
        let arrival = self.arrival(Vec::new(), vec![turn]);
        let id = self.journal.arrive(&arrival).unwrap()[0];
        let completion = super::completion("a reply");
        self.journal.complete(id, &completion).unwrap();
        self.then(id, next);
        id
    }

    /// What the user said next.
    pub(super) fn then(&self, turn: TurnId, text: &str) {
        let next = NextState {
            turn,
            messages: json!([{"role": "user", "content": text}]),
            ms: 2,
            source: None,
        };
        self.journal
            .arrive(&self.arrival(vec![next], Vec::new()))
            .unwrap();
    }

    /// What was taken for what the user said next was not.
    pub(super) fn retract(&self, turn: TurnId) {
        let mut arrival = self.arrival(Vec::new(), Vec::new());
        arrival.retract.push(clawhost_journal::NewRetraction {
            turn,
            reason: "left out".to_owned(),
            ms: 3,
        });
        self.journal.arrive(&arrival).unwrap();
    }

    /// A request of so many choices, all of them complete; `change` sees the place of each.
    pub(super) fn choices(
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
            .arrive(&self.arrival(Vec::new(), turns))
            .unwrap();
        for (choice, turn) in (0..).zip(&turns) {
            let mut completion = super::completion(&format!("reply {choice}"));
            change(choice, &mut completion);
            self.journal.complete(*turn, &completion).unwrap();
        }
        turns
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
