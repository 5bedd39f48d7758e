//! Replicas of the CPU backend behind one engine: requests spread over them, versions are published on all of them, and an
//! update is that of one backend.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use clawhost_chat::ChatTemplate;
use clawhost_chat::testing::byte_level;
use clawhost_cpu::CpuBackend;
use clawhost_engine::backend::{Backend, GradientReducer, HostReducer};
use clawhost_engine::testing::WrappedBackend;
use clawhost_engine::{
    AdamW, AdamWState, Candidates, Engine, EngineOptions, Event, ForwardError, GenerateRequest,
    Generation, LoadedVersion, LossGradients, OptimizerStep, Priority, ReplicatedBackend,
    SamplingParams, Sequence, TrainLimits, TrainSession,
};
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Model, ModelConfig, TrainedWeights};

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 265,
        ..tiny()
    }
}

fn model() -> Arc<Model> {
    Arc::new(Model::random(config(), 11))
}

fn cpu() -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(model()))
}

fn replicated(count: usize) -> ReplicatedBackend {
    ReplicatedBackend::new((0..count).map(|_| cpu()).collect(), HostReducer)
}

fn engine(backend: Arc<dyn Backend>) -> Engine {
    let template = ChatTemplate::new("{{ messages[0].content }}", []).unwrap();
    let parts = (Arc::new(byte_level()), Arc::new(template));
    Engine::new(backend, parts.0, parts.1, EngineOptions::default()).unwrap()
}

fn prompt(salt: u32) -> Vec<u32> {
    (0..40).map(|i| (i * 37 + salt * 101 + 5) % 260).collect()
}

/// A greedy request of ten tokens.
fn request(version: LoadedVersion, prompt: Vec<u32>) -> GenerateRequest {
    GenerateRequest {
        prompt,
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: 10,
            ignore_eos: true,
            ..SamplingParams::default()
        },
        version,
        priority: Priority::Interactive,
        user: None,
    }
}

fn ids(mut generation: Generation) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        match generation.blocking_next() {
            Some(Event::Token(token)) => ids.push(token.id),
            Some(Event::Finished(_)) => return ids,
            other => panic!("{other:?}"),
        }
    }
}

/// What one backend replies.
fn expected(weights: Option<&TrainedWeights>, salt: u32) -> Vec<u32> {
    let engine = engine(cpu());
    let version = engine.try_publish(1, weights.cloned()).unwrap();
    ids(engine.generate(request(version, prompt(salt))).unwrap())
}

/// Two replicas whose steps wait for permits, the number of steps of each, and the permits.
fn gated() -> (Engine, [Arc<AtomicUsize>; 2], [mpsc::Sender<()>; 2]) {
    let steps = [Arc::<AtomicUsize>::default(), Arc::default()];
    let (first, second) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let replica = |steps: &Arc<AtomicUsize>, gate: mpsc::Receiver<()>| -> Arc<dyn Backend> {
        let steps = Arc::clone(steps);
        Arc::new(WrappedBackend::new(cpu(), move |runner, batch| {
            let _closed = gate.recv();
            steps.fetch_add(1, Ordering::SeqCst);
            runner.step(batch)
        }))
    };
    let replicas = vec![replica(&steps[0], first.1), replica(&steps[1], second.1)];
    let backend = ReplicatedBackend::new(replicas, HostReducer);
    (engine(Arc::new(backend)), steps, [first.0, second.0])
}

#[test]
fn requests_run_on_all_replicas_and_end_on_their_version() {
    let (engine, steps, permits) = gated();
    let weights: TrainedWeights = Arc::new(random_adapter(&config(), 7)).into();
    let submit = |salt| {
        let request = request(engine.active(), prompt(salt));
        engine.generate(request).unwrap()
    };
    let mut before: Vec<Generation> = (0..4).map(submit).collect();
    for permit in &permits {
        permit.send(()).unwrap();
    }
    // Each replica has two of them; one has begun on each.
    for generation in &mut before[..2] {
        assert!(matches!(generation.blocking_next(), Some(Event::Token(_))));
    }
    engine.try_publish(1, Some(weights.clone())).unwrap();
    let after: Vec<Generation> = (4..8).map(submit).collect();
    drop(permits);
    for (salt, generation) in (0..).zip(before) {
        let expected = expected(None, salt);
        let found = ids(generation);
        assert!(expected.ends_with(&found) && found.len() >= 9, "{salt}");
    }
    for (salt, generation) in (4..).zip(after) {
        assert_eq!(ids(generation), expected(Some(&weights), salt), "{salt}");
    }
    // Neither replica ran what the other one has run.
    let steps = steps.map(|steps| steps.load(Ordering::SeqCst));
    assert!(
        steps.iter().all(|steps| (11..=40).contains(steps)),
        "{steps:?}"
    );
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.running, stats.waiting), (8, 0, 0));
    assert_eq!(stats.steps as usize, steps[0] + steps[1]);
}

#[test]
fn a_conversation_finds_its_prefix_on_the_replica_that_has_it() {
    let engine = engine(Arc::new(replicated(2)));
    // Two conversations, which begin at the same time.
    let submit = |prompt: &[u32]| {
        let request = request(engine.active(), prompt.to_vec());
        engine.generate(request).unwrap()
    };
    let mut turns = [prompt(1), prompt(2)];
    let mut prefilled = 0;
    for turn in 0..4 {
        let replies = [submit(&turns[0]), submit(&turns[1])];
        for (turn, reply) in turns.iter_mut().zip(replies) {
            let reply = ids(reply);
            turn.extend(reply);
            turn.extend([1, 2, 3]);
        }
        let now = engine.stats().prefill_tokens;
        // The last token of a reply is not in the KV cache; the three after it are the user's.
        assert_eq!(now - prefilled, if turn == 0 { 80 } else { 8 });
        prefilled = now;
    }
}

#[test]
fn weights_that_one_replica_cannot_load_are_loaded_by_none() {
    let full = WrappedBackend::new(cpu(), |runner, batch| runner.step(batch));
    let out_of_memory = full.out_of_memory();
    let backend = ReplicatedBackend::new(vec![cpu(), Arc::new(full)], HostReducer);
    let engine = engine(Arc::new(backend));
    let weights: TrainedWeights = Arc::new(random_adapter(&config(), 7)).into();
    out_of_memory.store(true, Ordering::SeqCst);
    let error = engine.try_publish(1, Some(weights.clone())).unwrap_err();
    assert!(error.reason.contains("out of memory"), "{error}");
    assert_eq!(engine.active().version, 0);
    out_of_memory.store(false, Ordering::SeqCst);
    let version = engine.try_publish(2, Some(weights.clone())).unwrap();
    let replies: Vec<_> = (0..2)
        .map(|salt| {
            engine
                .generate(request(version.clone(), prompt(salt)))
                .unwrap()
        })
        .collect();
    for (salt, reply) in (0..).zip(replies) {
        assert_eq!(ids(reply), expected(Some(&weights), salt));
    }
}

/// Token sequences of several lengths.
fn texts() -> Vec<Vec<u32>> {
    let lengths = [12, 20, 9, 31, 5, 16, 40];
    let text = |(salt, length): (u32, usize)| prompt(salt)[..length].to_vec();
    (0..).zip(lengths).map(text).collect()
}

/// Three updates of two micro-batches each, with the norm of the gradients in between.
fn train(backend: &dyn Backend, weights: &TrainedWeights) -> (TrainedWeights, AdamWState) {
    let texts = texts();
    let mut state = None;
    let mut at = weights.clone();
    for _ in 0..3 {
        let session = backend.train(&at, state, TrainLimits::default());
        let mut session = session.unwrap();
        for texts in [&texts[..3], &texts[3..]] {
            accumulate(&mut *session, texts);
            assert!(session.gradient_norm().unwrap() > 0.0);
        }
        step(&mut *session).unwrap();
        let (weights, moments) = session.finish().unwrap();
        (at, state) = (weights, Some(moments));
    }
    (at, state.unwrap())
}

fn accumulate(session: &mut dyn TrainSession, texts: &[Vec<u32>]) {
    let sequences: Vec<Sequence<'_>> = texts
        .iter()
        .map(|tokens| Sequence {
            tokens,
            start: 1,
            temperature: 1.0,
            candidates: Candidates::None,
        })
        .collect();
    let scores = session.forward(&sequences).unwrap();
    let gradients: Vec<LossGradients> = scores
        .iter()
        .map(|scores| LossGradients {
            d_logprob: vec![-0.1; scores.logprobs.len()],
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
        })
        .collect();
    session.backward(&gradients).unwrap();
}

fn step(session: &mut dyn TrainSession) -> Result<(), ForwardError> {
    session.step(OptimizerStep {
        adamw: AdamW::default(),
        learning_rate: 1e-2,
        gradient_scale: 1.0,
    })
}

fn values(weights: &TrainedWeights) -> Vec<f32> {
    let tensors = weights.tensors();
    tensors
        .iter()
        .flat_map(|(_, values)| values.to_vec())
        .collect()
}

#[test]
fn an_update_on_replicas_is_that_of_one_backend_and_the_same_in_every_run() {
    let lora: TrainedWeights = Arc::new(random_adapter(&config(), 4)).into();
    for start in [lora, model().into()] {
        let (one, _) = train(&*cpu(), &start);
        let change: Vec<f32> = values(&one);
        let start_values = values(&start);
        let size: f64 = squares(change.iter().zip(&start_values));
        for count in [2, 3, 8] {
            let (all, state) = train(&replicated(count), &start);
            let (again, again_state) = train(&replicated(count), &start);
            assert_eq!(all.digest(), again.digest());
            assert!(state == again_state);
            assert_eq!(state.updates, 3);
            let difference = squares(values(&all).iter().zip(&change));
            let relative = (difference / size).sqrt();
            assert!(
                size > 0.0 && relative < 2e-2,
                "{count} replicas: {relative:.2e}"
            );
        }
    }
}

fn squares<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> f64 {
    pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

/// A reducer that looks at the weights of all sessions before it sums.
#[derive(Debug, Default)]
struct Watched(Mutex<Vec<Vec<String>>>);

impl GradientReducer for &'static Watched {
    fn reduce(&self, sessions: &mut [Box<dyn TrainSession>]) -> Result<(), ForwardError> {
        let weights: Result<Vec<TrainedWeights>, ForwardError> =
            sessions.iter().map(|session| session.weights()).collect();
        let digests = weights?.iter().map(TrainedWeights::digest).collect();
        self.0.lock().unwrap().push(digests);
        HostReducer.reduce(sessions)
    }
}

#[test]
fn replicas_have_the_same_weights_after_every_update() {
    let watched: &'static Watched = Box::leak(Box::default());
    let backend = ReplicatedBackend::new(vec![cpu(), cpu(), cpu()], watched);
    let start: TrainedWeights = Arc::new(random_adapter(&config(), 4)).into();
    let session = backend.train(&start, None, TrainLimits::default());
    let mut session = session.unwrap();
    for _ in 0..3 {
        session.zero_gradients().unwrap();
        // Only the first replica gets the one sequence.
        accumulate(&mut *session, &texts()[..1]);
        step(&mut *session).unwrap();
    }
    let seen = watched.0.lock().unwrap();
    assert_eq!(seen.len(), 3);
    for digests in &*seen {
        assert!(
            digests.iter().all(|digest| *digest == digests[0]),
            "{digests:?}"
        );
    }
    assert!(seen[0][0] != seen[1][0] && seen[1][0] != seen[2][0]);
}
