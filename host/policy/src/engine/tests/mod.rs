//! Tests of the engine on a tiny random model.
//!
//! Tests that depend on the order of steps drive the scheduler directly; tests of the engine thread use a forward pass
//! that runs one step per permit.

mod adapters;
mod fair_share;
mod faults;
mod full;
mod loading;
mod preemption;
mod prefix_cache;
mod random;
mod remote_backend;
mod serving;
mod steps;

use std::sync::{Arc, mpsc};

use super::handle::Engine;
use super::scheduler::{Forward, Scheduler, kv_cache_tokens};
use super::sequence::Sequence;
use super::waiting_queue::WaitingQueue;
use super::*;
use crate::cache::{BLOCK_TOKENS, BlockShape};
use crate::config::ModelConfig;
use crate::lora::Adapter;
use crate::model::Model;
use crate::model::tests::{random_adapter, tiny};
use crate::sampling::SamplingParams;
use crate::text::{ChatTemplate, Tokenizer, byte_level, byte_level_json};
use crate::trained_weights::TrainedWeights;

/// EOS token of the test vocabulary.
const EOS: u32 = 262;

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 265,
        eos_token_ids: vec![EOS],
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

fn base() -> LoadedVersion {
    LoadedVersion {
        version: 0,
        digest: "base".to_owned(),
        weights: None,
    }
}

fn adapter_version(version: u64) -> LoadedVersion {
    let adapter = random_adapter(&config(), version);
    LoadedVersion {
        version,
        digest: adapter.digest(),
        weights: Some(Arc::new(adapter).into()),
    }
}

fn prompt(length: usize, salt: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * 37 + salt * 101 + 5) % 260)
        .collect()
}

fn request(prompt: Vec<u32>, seed: u64, max_tokens: u32) -> GenerateRequest {
    let sampling = SamplingParams {
        seed: Some(seed),
        max_tokens,
        ..SamplingParams::default()
    };
    GenerateRequest {
        prompt,
        sampling,
        version: base(),
        priority: Priority::Interactive,
        user: None,
    }
}

/// Events of a reply, collected.
#[derive(Debug, Clone, Default, PartialEq)]
struct Reply {
    tokens: Vec<SampledToken>,
    text: String,
    finished: Option<CompletionOutput>,
    failed: Option<String>,
}

impl Reply {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    fn apply(&mut self, event: Event) {
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

    /// Applies the available events.
    fn poll(&mut self, generation: &mut Generation) {
        while let Ok(event) = generation.events.try_recv() {
            self.apply(event);
        }
    }

    fn collect(mut generation: Generation) -> Self {
        let mut reply = Self::default();
        while let Some(event) = generation.blocking_next() {
            reply.apply(event);
        }
        reply
    }

    /// Asserts the same tokens, and logprobs within the tolerance that other batches and chunks may cause.
    fn assert_agrees(&self, other: &Self) {
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

/// A scheduler that the test steps itself.
struct TestScheduler {
    inner: Scheduler,
    tokenizer: Arc<Tokenizer>,
    arrivals: u64,
}

impl TestScheduler {
    fn new(options: EngineOptions) -> Self {
        Self::with(model(), options, Box::new(Model::forward))
    }

    fn with(model: Arc<Model>, options: EngineOptions, forward: Forward) -> Self {
        Self {
            inner: Scheduler::new(model, forward, options),
            tokenizer: tokenizer(),
            arrivals: 0,
        }
    }

    fn admit(&mut self, request: GenerateRequest) -> Generation {
        let eos_token_ids: Arc<[u32]> = Arc::new([EOS]);
        let (mut sequence, generation) = Sequence::new(
            request,
            eos_token_ids,
            None,
            512,
            Arc::clone(&self.tokenizer),
        );
        sequence.arrival = self.arrivals;
        self.arrivals += 1;
        self.inner.admit(sequence);
        generation
    }

    fn step(&mut self) {
        self.inner.step();
        self.inner.update_gauges();
        self.inner.send_events();
    }

    /// Steps until no request is running.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.inner.is_idle() {
                return;
            }
            self.step();
        }
        panic!("the requests do not finish");
    }

    fn reply(&mut self, request: GenerateRequest) -> Reply {
        let generation = self.admit(request);
        self.finish();
        Reply::collect(generation)
    }
}

/// A scheduler with its waiting queue, as on the engine thread, that the test steps itself.
struct TestEngine {
    scheduler: TestScheduler,
    waiting_queue: WaitingQueue,
}

impl TestEngine {
    fn new(options: EngineOptions) -> Self {
        Self {
            scheduler: TestScheduler::new(options),
            waiting_queue: WaitingQueue::default(),
        }
    }

    fn submit(&mut self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        let options = &self.scheduler.inner.options;
        let capacity = kv_cache_tokens(&model(), options);
        let (sequence, generation) = Sequence::new(
            request,
            Arc::new([EOS]),
            None,
            capacity.min(512),
            Arc::clone(&self.scheduler.tokenizer),
        );
        self.waiting_queue.push(sequence, options.max_waiting)?;
        Ok(generation)
    }

    fn step(&mut self) {
        let scheduler = &mut self.scheduler.inner;
        let mut state = self.waiting_queue.lock();
        scheduler.stats.cancelled += state.drop_cancelled();
        while let Some(sequence) =
            state.pop_next(|priority, user| scheduler.admission_key(priority, user))
        {
            scheduler.admit(sequence);
        }
        drop(state);
        self.scheduler.step();
    }

    fn is_idle(&self) -> bool {
        self.scheduler.inner.is_idle() && self.waiting_queue.lock().waiting() == 0
    }
}

/// Size of `count` KV-cache blocks in bytes.
fn blocks(count: usize) -> usize {
    count * BlockShape::new(&config()).bytes()
}

/// The reply of a request that runs alone, with unchunked prefill and no prefix cache.
fn run_alone(request: GenerateRequest) -> Reply {
    TestScheduler::new(EngineOptions {
        prefix_caching: false,
        ..EngineOptions::default()
    })
    .reply(request)
}

fn start(options: EngineOptions) -> Engine {
    Engine::start(model(), tokenizer(), template(), options)
}

/// An engine that runs one step per permit.
fn stepwise_engine(options: EngineOptions) -> (Engine, mpsc::Sender<()>) {
    let (permits, gate) = mpsc::channel();
    let model = model();
    let forward: Forward = Box::new(move |model, rows| {
        let _closed = gate.recv();
        model.forward(rows)
    });
    let defaults = (SamplingParams::default(), vec![EOS]);
    (
        Engine::launch(model, tokenizer(), template(), defaults, options, forward),
        permits,
    )
}

fn nan_adapter() -> Adapter {
    let mut adapter = random_adapter(&config(), 3);
    for (_, values) in adapter.tensors_mut() {
        values.fill(f32::NAN);
    }
    adapter
}
