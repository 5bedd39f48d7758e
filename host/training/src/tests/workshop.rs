//! A journal, an engine and a data directory, with samples that the engine really drew.

use std::path::PathBuf;
use std::sync::Arc;

use clawhost_journal::{
    Arrival, Completion, Finish, HintOutcome, HintPlacement, Journal, JudgementOutcome, NewHint,
    NewJudgement, NewSample, NewTurn, NextState, SampleId, SampleRecord, SessionId, SessionUpsert,
    TurnId, TurnKind,
};
use clawhost_policy::{
    ChatTemplate, Constraint, Engine, EngineOptions, Event, ForwardError, GenerateRequest, Model,
    Priority, Row, Sampling, Tokenizer,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::component::Components;
use crate::options::TrainingOptions;
use crate::trainer::Trainer;

pub(super) struct Workshop {
    pub(super) journal: Journal,
    pub(super) engine: Engine,
    pub(super) dir: TempDir,
    made: u32,
    /// At which replies are drawn.
    pub(super) temperature: f32,
    /// What replies are held to.
    pub(super) constraint: Option<Constraint>,
    /// The token whose log-prob is recorded as another than it was.
    pub(super) shifted: Option<usize>,
    /// Whether it is not recorded what the constraint forced.
    pub(super) unmarked: bool,
    /// The running mean that samples are compared with.
    pub(super) baseline_key: String,
}

/// Tokens, their two log-probs, and the places that were forced.
type Drawn = (Vec<u32>, Vec<f32>, Vec<f32>, Vec<u32>);

/// Options under which a tiny model learns visibly in one step.
pub(super) fn options() -> TrainingOptions {
    let mut options = TrainingOptions {
        batch: 4,
        min_batch: 1,
        max_wait_seconds: 0.0,
        estimator: crate::advantage::Estimator::Raw,
        ..TrainingOptions::default()
    };
    options.optimizer.learning_rate = 1e-2;
    options.lora.rank = 4;
    options
}

pub(super) fn engine(seed: u64) -> Engine {
    engine_with(seed, |model, rows| model.forward(rows))
}

/// An engine with this forward pass.
pub(super) fn engine_with(
    seed: u64,
    forward: impl FnMut(&Model, &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> + Send + 'static,
) -> Engine {
    let letters: serde_json::Map<String, Value> = ('a'..='x')
        .zip(0u32..)
        .map(|(letter, id)| (letter.to_string(), json!(id)))
        .collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": letters, "merges": []},
    });
    Engine::start_with_forward(
        Arc::new(super::tiny_model(seed)),
        Arc::new(Tokenizer::from_bytes(tokenizer.to_string().as_bytes()).unwrap()),
        Arc::new(ChatTemplate::new("{{ messages[0].content }}", []).unwrap()),
        EngineOptions::default(),
        forward,
    )
}

/// The text of which each letter is one of these tokens.
pub(super) fn letters(ids: &[u32]) -> String {
    ids.iter()
        .filter_map(|id| char::from_u32(u32::from('a') + id))
        .collect()
}

fn hint(text: &str) -> NewHint {
    NewHint {
        source: "plugin:h".to_owned(),
        digest: "hh".to_owned(),
        outcome: HintOutcome::Hint {
            text: text.to_owned(),
            placement: HintPlacement::LastUser,
            confidence: 1.0,
        },
        said: String::new(),
        metrics: json!({}),
        ms: 4,
    }
}

impl Workshop {
    pub(super) fn new() -> Self {
        Self {
            journal: Journal::in_memory().unwrap(),
            engine: engine(7),
            dir: tempfile::tempdir().unwrap(),
            made: 0,
            temperature: 0.8,
            constraint: None,
            shifted: None,
            unmarked: false,
            baseline_key: "default".to_owned(),
        }
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// A trainer that takes up where the journal stands.
    pub(super) fn trainer(&self, options: &TrainingOptions) -> Trainer {
        Trainer::open(
            self.journal.clone(),
            self.engine.clone(),
            self.data(),
            options.clone(),
            Components::default(),
        )
        .unwrap()
    }

    /// A new process on the same data: a new engine that serves the base model.
    pub(super) fn restart(&mut self) {
        self.engine = engine(7);
    }

    /// A sample with this reward, drawn by the engine from the adapter that is active now.
    pub(super) fn sample(&mut self, reward: f32) -> SampleId {
        self.taught(Some(reward), &[])
    }

    /// A sample with hints, and with a reward or without one.
    pub(super) fn taught(&mut self, reward: Option<f32>, hints: &[&str]) -> SampleId {
        self.made += 1;
        let prompt: Vec<u32> = (0..5).map(|i| 1 + (i * 7 + self.made * 3) % 23).collect();
        let served = self.engine.active();
        let mut generation = self
            .engine
            .generate(GenerateRequest {
                prompt: prompt.clone(),
                sampling: Sampling {
                    seed: Some(u64::from(self.made)),
                    max_tokens: 8,
                    temperature: self.temperature,
                    top_p: 0.9,
                    constraint: self.constraint.clone(),
                    ..Sampling::default()
                },
                served: served.clone(),
                priority: Priority::Person,
                user: None,
            })
            .unwrap();
        let (mut ids, mut logprobs, mut full) = (Vec::new(), Vec::new(), Vec::new());
        let mut forced = Vec::new();
        while let Some(event) = generation.blocking_next() {
            match event {
                Event::Token(token) => {
                    if token.forced && !self.unmarked {
                        forced.push(ids.len() as u32);
                    }
                    ids.push(token.id);
                    logprobs.push(token.logprob);
                    full.push(token.full_logprob);
                }
                Event::Finished(_) => {}
                Event::Failed(reason) => panic!("{reason}"),
            }
        }
        if let Some(logprob) = self.shifted.and_then(|place| full.get_mut(place)) {
            *logprob += 0.1;
        }
        let drawn = (ids, logprobs, full, forced);
        self.keep(prompt, drawn, served.version, reward, hints)
    }

    pub(super) fn record(
        &self,
        prompt_ids: Vec<u32>,
        token_ids: Vec<u32>,
        logprobs: Vec<f32>,
        full_logprobs: Vec<f32>,
        adapter_version: u64,
        reward: f32,
    ) -> SampleId {
        let drawn = (token_ids, logprobs, full_logprobs, Vec::new());
        self.keep(prompt_ids, drawn, adapter_version, Some(reward), &[])
    }

    fn keep(
        &self,
        prompt_ids: Vec<u32>,
        (token_ids, logprobs, full_logprobs, forced): Drawn,
        adapter_version: u64,
        reward: Option<f32>,
        hints: &[&str],
    ) -> SampleId {
        let session = SessionUpsert {
            id: SessionId(format!("s{}", self.made)),
            name: None,
            origin: "new".to_owned(),
            key: None,
            user: None,
            ms: 1,
        };
        let turn = NewTurn {
            response_id: format!("r{}", self.made),
            choice: 0,
            group: format!("g{}", self.made),
            kind: TurnKind::Unknown,
            parent: None,
            received_ms: 1,
            key: None,
            request_digest: String::new(),
            // The template shows the content alone, and every token is one letter.
            messages: json!([{"role": "user", "content": letters(&prompt_ids)}]),
            tools: json!([]),
            template: json!({}),
            prompt_ids,
            sampling: json!({}),
            temperature: self.temperature,
            adapter_version,
            adapter_digest: String::new(),
            model: "m".to_owned(),
            matched: json!({}),
            histories: Vec::new(),
        };
        let arrive = |next_state_of, turns| {
            let arrival = Arrival {
                session: session.clone(),
                retract: Vec::new(),
                next_state_of,
                turns,
            };
            self.journal.arrive(&arrival).unwrap()
        };
        let id: TurnId = arrive(Vec::new(), vec![turn])[0];
        let completion = Completion {
            ms: 2,
            finish: Finish::Stop,
            reply: json!({"role": "assistant", "content": "x"}),
            anchor: None,
            token_ids,
            logprobs,
            full_logprobs,
            forced,
        };
        self.journal.complete(id, &completion).unwrap();
        let next = NextState {
            turn: id,
            messages: json!([{"role": "user", "content": "ok"}]),
            ms: 3,
            source: None,
        };
        arrive(vec![next], Vec::new());
        let sample = NewSample {
            turn: id,
            reward,
            baseline_key: self.baseline_key.clone(),
            provenance: json!({"components": ["c0ffee"]}),
        };
        let hints: Vec<NewHint> = hints.iter().map(|text| hint(text)).collect();
        let judgement = NewJudgement {
            turn: id.into(),
            verdicts: &[],
            hints: &hints,
            receipts: &[],
            outcome: JudgementOutcome::Sample(&sample),
        };
        self.journal.commit(&judgement).unwrap().unwrap()
    }

    /// Eight samples, rewarded and punished in turn.
    pub(super) fn eight(&mut self) -> Vec<SampleId> {
        (0..8)
            .map(|i| self.sample(if i % 2 == 0 { 1.0 } else { -1.0 }))
            .collect()
    }

    /// What became of a sample.
    pub(super) fn found(&self, id: SampleId) -> SampleRecord {
        let turns: u64 = self.journal.counts().unwrap().turns.values().sum();
        (1..=turns.cast_signed())
            .flat_map(|turn| self.journal.samples_of(TurnId(turn)).unwrap())
            .find(|sample| sample.id == id)
            .unwrap()
    }

    /// Mean log-prob of a sample's reply under what the engine serves now.
    pub(super) fn score(&self, id: SampleId) -> f32 {
        let sample = self.found(id);
        let mut tokens = sample.prompt_ids.clone();
        tokens.extend(&sample.token_ids);
        let sequence = clawhost_policy::Sequence {
            tokens: &tokens,
            start: sample.prompt_ids.len(),
            temperature: sample.temperature,
            candidates: clawhost_policy::Candidates::None,
        };
        let served = self.engine.active();
        let scored = served.score(self.engine.model(), &[sequence]).unwrap();
        scored[0].logprobs.iter().sum::<f32>() / scored[0].logprobs.len() as f32
    }
}
