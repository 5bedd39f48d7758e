//! The engine's promises, on a tiny random model.
//!
//! What depends on the order of steps is tested on the batcher, step by step; what depends on the
//! thread is tested through a gate that lets one step pass at a time.

mod adapters;
mod elsewhere;
mod fairness;
mod faults;
mod full;
mod loading;
mod memory;
mod random;
mod reuse;
mod serving;
mod steps;

use std::sync::{Arc, mpsc};

use super::batcher::{Batcher, Forward, memory_tokens};
use super::handle::Engine;
use super::intake::Intake;
use super::sequence::Sequence;
use super::*;
use crate::cache::{BLOCK_TOKENS, BlockShape};
use crate::config::ModelConfig;
use crate::learned::Learned;
use crate::lora::Adapter;
use crate::model::Model;
use crate::model::tests::{busy_adapter, tiny};
use crate::sampling::Sampling;
use crate::text::{ChatTemplate, Tokenizer, byte_level, byte_level_json};

/// End token of the test vocabulary.
const END: u32 = 262;

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 265,
        eos_token_ids: vec![END],
        ..tiny()
    }
}

fn model() -> Arc<Model> {
    Arc::new(Model::random(config(), 11))
}

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(byte_level())
}

fn template() -> Arc<ChatTemplate> {
    Arc::new(ChatTemplate::new("{{ messages[0].content }}", []).unwrap())
}

fn base() -> Served {
    Served {
        version: 0,
        digest: "base".to_owned(),
        learned: None,
    }
}

fn version(version: u64) -> Served {
    let adapter = busy_adapter(&config(), version);
    Served {
        version,
        digest: adapter.digest(),
        learned: Some(Arc::new(adapter).into()),
    }
}

fn prompt(length: usize, salt: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * 37 + salt * 101 + 5) % 260)
        .collect()
}

fn request(prompt: Vec<u32>, seed: u64, max_tokens: u32) -> GenerateRequest {
    let sampling = Sampling {
        seed: Some(seed),
        max_tokens,
        ..Sampling::default()
    };
    GenerateRequest {
        prompt,
        sampling,
        served: base(),
        priority: Priority::Person,
        user: None,
    }
}

/// A whole reply.
#[derive(Debug, Clone, Default, PartialEq)]
struct Reply {
    tokens: Vec<SampledToken>,
    text: String,
    finished: Option<Finished>,
    failed: Option<String>,
}

impl Reply {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Token(token) => {
                self.text.push_str(&token.text);
                self.tokens.push(token);
            }
            Event::Finished(finished) => {
                self.text.push_str(&finished.text);
                self.finished = Some(finished);
            }
            Event::Failed(reason) => self.failed = Some(reason),
        }
    }

    /// Events that are there already.
    fn poll(&mut self, generation: &mut Generation) {
        while let Ok(event) = generation.events.try_recv() {
            self.add(event);
        }
    }

    fn all(mut generation: Generation) -> Self {
        let mut reply = Self::default();
        while let Some(event) = generation.blocking_next() {
            reply.add(event);
        }
        reply
    }

    /// Same tokens, log-probs within the bound that other batches and chunks may cause.
    fn agrees(&self, other: &Self) {
        assert_eq!(self.ids(), other.ids());
        assert_eq!(self.text, other.text);
        for (a, b) in self.tokens.iter().zip(&other.tokens) {
            assert!((a.logprob - b.logprob).abs() < 1e-5, "{a:?} {b:?}");
            assert!(
                (a.full_logprob - b.full_logprob).abs() < 1e-5,
                "{a:?} {b:?}"
            );
        }
    }
}

/// A batcher driven by hand.
struct Bench {
    batcher: Batcher,
    tokenizer: Arc<Tokenizer>,
    arrivals: u64,
}

impl Bench {
    fn new(options: EngineOptions) -> Self {
        Self::with(model(), options, Box::new(Model::forward))
    }

    fn with(model: Arc<Model>, options: EngineOptions, forward: Forward) -> Self {
        Self {
            batcher: Batcher::new(model, forward, options),
            tokenizer: tokenizer(),
            arrivals: 0,
        }
    }

    fn admit(&mut self, request: GenerateRequest) -> Generation {
        let ends: Arc<[u32]> = Arc::new([END]);
        let (mut sequence, generation) =
            Sequence::new(request, ends, None, 512, Arc::clone(&self.tokenizer));
        sequence.order = self.arrivals;
        self.arrivals += 1;
        self.batcher.admit(sequence);
        generation
    }

    fn step(&mut self) {
        self.batcher.step();
        self.batcher.measure();
        self.batcher.deliver();
    }

    /// Steps until nothing is running.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.batcher.is_idle() {
                return;
            }
            self.step();
        }
        panic!("the batcher does not come to an end");
    }

    fn reply(&mut self, request: GenerateRequest) -> Reply {
        let generation = self.admit(request);
        self.finish();
        Reply::all(generation)
    }
}

/// A batcher behind its queues, as the engine's thread runs it, driven by hand.
struct Counter {
    bench: Bench,
    intake: Intake,
}

impl Counter {
    fn new(options: EngineOptions) -> Self {
        Self {
            bench: Bench::new(options),
            intake: Intake::default(),
        }
    }

    fn ask(&mut self, request: GenerateRequest) -> Result<Generation, Refused> {
        let options = &self.bench.batcher.options;
        let memory = memory_tokens(&model(), options);
        let (sequence, generation) = Sequence::new(
            request,
            Arc::new([END]),
            None,
            memory.min(512),
            Arc::clone(&self.bench.tokenizer),
        );
        self.intake.push(sequence, options.max_waiting)?;
        Ok(generation)
    }

    fn step(&mut self) {
        let batcher = &mut self.bench.batcher;
        let mut state = self.intake.lock();
        batcher.stats.cancelled += state.drop_cancelled();
        while let Some(sequence) = state.next(|priority, user| batcher.admits(priority, user)) {
            batcher.admit(sequence);
        }
        drop(state);
        self.bench.step();
    }

    fn is_idle(&self) -> bool {
        self.bench.batcher.is_idle() && self.intake.lock().waiting() == 0
    }
}

/// Bytes of so many blocks of attention memory.
fn blocks(count: usize) -> usize {
    count * BlockShape::new(&config()).bytes()
}

/// The reply of a request that is served by itself, prompt in one go, nothing reused.
fn alone(request: GenerateRequest) -> Reply {
    Bench::new(EngineOptions {
        prefix_reuse: false,
        ..EngineOptions::default()
    })
    .reply(request)
}

fn start(options: EngineOptions) -> Engine {
    Engine::start(model(), tokenizer(), template(), options)
}

/// An engine that makes one step for each permit.
fn gated(options: EngineOptions) -> (Engine, mpsc::Sender<()>) {
    let (permits, gate) = mpsc::channel();
    let model = model();
    let forward: Forward = Box::new(move |model, rows| {
        let _closed = gate.recv();
        model.forward(rows)
    });
    let own = (Sampling::default(), vec![END]);
    (
        Engine::launch(model, tokenizer(), template(), own, options, forward),
        permits,
    )
}

fn nan_adapter() -> Adapter {
    let mut adapter = busy_adapter(&config(), 3);
    for (_, values) in adapter.tensors_mut() {
        values.fill(f32::NAN);
    }
    adapter
}
