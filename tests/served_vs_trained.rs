//! Logprobs recorded while serving match those that the trainer computes with the same version: mean difference at most
//! 1e-4, maximum at most 1e-3, in nats.
//!
//! They are recorded by the engine in batched decode steps with prefix caching, and computed by `Model::score`, the
//! differentiated forward pass, over the whole sequence and from the adapter's files.

use clawhost_cpu::{CpuModel, CpuWeights};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use clawhost_engine::{Engine, Sequence};
use clawhost_journal::{TurnRecord, TurnState};
use clawhost_model::TrainedWeights;
use clawhost_tests::TestServer;
use clawhost_training::TrainableParameters;
use serde_json::{Value, json};

/// Number of versions whose turns are compared.
const VERSIONS: usize = 4;
/// Page size; more than the number of sessions.
const MANY: u32 = 10_000;
/// Timeout; longer than training that many versions takes on any machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(1_800);

/// Differences between recorded and computed logprobs.
#[derive(Debug, Default)]
struct Gap {
    tokens: usize,
    sum: f64,
    max: f64,
}

impl Gap {
    fn mean(&self) -> f64 {
        self.sum / self.tokens.max(1) as f64
    }

    fn add(&mut self, recorded: &[f32], computed: &[f32]) {
        assert_eq!(recorded.len(), computed.len());
        for (recorded, computed) in recorded.iter().zip(computed) {
            let difference = f64::from((recorded - computed).abs());
            assert!(difference.is_finite());
            self.tokens += 1;
            self.sum += difference;
            self.max = self.max.max(difference);
        }
    }
}

/// All turns.
fn turns(running: &TestServer) -> Vec<TurnRecord> {
    let sessions = running.journal().sessions(MANY).unwrap();
    let of = |id| running.journal().session_turns(id).unwrap();
    sessions
        .iter()
        .flat_map(|session| of(&session.id))
        .collect()
}

/// Versions of the replies.
fn versions(turns: &[TurnRecord]) -> BTreeSet<u64> {
    turns.iter().map(|turn| turn.adapter_version).collect()
}

/// Logprobs of a turn's recorded tokens, computed with trained weights; `None` is the base model.
fn computed(engine: &Engine, weights: Option<&TrainedWeights>, turn: &TurnRecord) -> Vec<f32> {
    let completion = turn.completion.as_ref().unwrap();
    let tokens = [&turn.prompt_ids[..], &completion.token_ids].concat();
    let sequence = Sequence {
        tokens: &tokens,
        start: turn.prompt_ids.len(),
        // A greedy reply is recorded with logprobs at temperature 1.
        temperature: if turn.temperature > 0.0 {
            turn.temperature
        } else {
            1.0
        },
        candidates: clawhost_engine::Candidates::None,
    };
    let scored = match weights {
        Some(weights) => weights.score(engine.model(), &[sequence]),
        None => engine.model().score(None, &[sequence]),
    };
    let scored = scored.unwrap();
    scored.into_iter().next().unwrap().logprobs
}

/// The weights of a version loaded from its files; `None` is the base model.
fn load_weights(running: &TestServer, version: u64) -> Option<TrainedWeights> {
    let rows = running.journal().adapters().unwrap();
    let row = rows.iter().find(|row| row.version == version)?;
    let path = running.data.path().join(Path::new(&row.path));
    let weights = TrainedWeights::load(&path, running.engine().model()).unwrap();
    assert_eq!(weights.digest(), row.digest);
    Some(weights)
}

/// Holds one conversation with alternating praise and complaints.
async fn converse(running: &TestServer, topic: &str, fields: Value, rounds: usize) {
    let mut conversation = running.conversation().with(fields);
    conversation
        .send_message(&format!(
            "A shop sells {topic}. Tom buys 4 and then 3 more. How many does he have?"
        ))
        .await;
    for round in 0..rounds {
        let text = match round % 3 {
            0 => "That's wrong, please do it again as one plain sentence.",
            1 => "Thanks, perfect!",
            _ => "Next one: 6 cups and 5 cups, how many cups?",
        };
        // Some replies are streamed, which must not matter.
        if round % 2 == 0 {
            conversation.send_message_streaming(text).await;
        } else {
            conversation.send_message(text).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_logprobs_match_the_trainer() {
    let running = TestServer::start().await;
    assert_logprobs_match(&running).await;
    let learned = load_weights(&running, 1).unwrap();
    assert!(learned.adapter().is_some());
}

/// The same with full copies of the weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_logprobs_match_the_trainer_with_full_copies() {
    let running = TestServer::with(|config| {
        config.training.parameters = TrainableParameters::Full;
        config.training.optimizer.learning_rate = 4e-4;
    })
    .await;
    assert_logprobs_match(&running).await;
    let learned = load_weights(&running, 1).unwrap();
    assert!(learned.adapter().is_none());
}

/// Holds conversations until enough versions have replied, and compares recorded and computed logprobs.
async fn assert_logprobs_match(running: &TestServer) {
    let cut = json!({"temperature": 0.7, "top_p": 0.8, "top_k": 20});
    let ways = [
        ("pens", json!({"temperature": 1.0})),
        ("hats", json!({"temperature": 0.7})),
        ("cups", json!({"temperature": 1.0, "seed": 5})),
        ("toys", json!({"temperature": 0.7, "seed": 6})),
        ("bags", cut),
        ("kites", json!({"temperature": 0})),
    ];
    let began = Instant::now();
    // At least two rounds, then until turns of enough versions are recorded: how many samples a step takes depends on
    // the training speed of the machine.
    for round in 1.. {
        let [a, b, c, d, e, f] = ways.each_ref().map(|(topic, fields)| {
            // Different first messages in every round, so that none is a retry.
            let seen = running.journal().sessions(MANY).unwrap().len();
            let topic = format!("{topic} and {} other things", seen + 3);
            let fields = fields.clone();
            async move { converse(running, &topic, fields, 6).await }
        });
        tokio::join!(a, b, c, d, e, f);
        running.wait_until_idle().await;
        let versions = versions(&turns(running)).len();
        if round >= 2 && versions >= VERSIONS {
            break;
        }
        assert!(
            began.elapsed() < TEST_TIMEOUT,
            "after {round} rounds only {versions} versions have replied"
        );
    }

    let engine = running.engine();
    let mut gaps: BTreeMap<u64, Gap> = BTreeMap::new();
    let (mut all, mut elsewhere) = (Gap::default(), Gap::default());
    let turns = turns(running);
    let last = *versions(&turns).last().unwrap();
    let adapters: BTreeMap<u64, Option<TrainedWeights>> = (0..=last)
        .map(|version| (version, load_weights(running, version)))
        .collect();
    let of = |version: u64| adapters.get(&version).unwrap().as_ref();
    for turn in &turns {
        assert_eq!(turn.state, TurnState::Complete);
        let recorded = &turn.completion.as_ref().unwrap().full_logprobs;
        let own = computed(engine, of(turn.adapter_version), turn);
        all.add(recorded, &own);
        gaps.entry(turn.adapter_version)
            .or_default()
            .add(recorded, &own);
        // Control: with another version the comparison fails.
        let other = if turn.adapter_version == last {
            0
        } else {
            last
        };
        elsewhere.add(recorded, &computed(engine, of(other), turn));
    }
    println!("version  tokens  mean |delta|  max |delta|");
    for (version, gap) in &gaps {
        println!(
            "{version:>7}  {:>6}  {:>12.2e}  {:>11.2e}",
            gap.tokens,
            gap.mean(),
            gap.max
        );
    }
    println!(
        "all: {} turns, {} tokens, mean {:.2e}, max {:.2e}; under another version: mean {:.2e}, max {:.2e}",
        turns.len(),
        all.tokens,
        all.mean(),
        all.max,
        elsewhere.mean(),
        elsewhere.max
    );
    let stats = running.engine().stats();
    println!(
        "rows in a step {:.2} on average, {} of {} prompt tokens reused",
        stats.mean_batch(),
        stats.cached_tokens,
        stats.cached_tokens + stats.prefill_tokens
    );
    assert!(
        gaps.len() >= VERSIONS,
        "turns of several versions were recorded"
    );
    assert!(stats.cached_tokens > 0 && stats.mean_batch() > 1.0);
    assert!(all.mean() <= 1e-4 && all.max <= 1e-3, "{all:?}");
    assert!(elsewhere.mean() > 1e-2, "{elsewhere:?}");
}

#[tokio::test]
async fn every_published_step_reports_its_logprob_differences() {
    let running = TestServer::start().await;
    converse(&running, "apples", json!({}), 6).await;
    running.wait_until_idle().await;
    let steps = running.journal().steps(100).unwrap();
    let published: Vec<_> = steps.iter().filter(|step| step.adapter.is_some()).collect();
    assert!(!published.is_empty());
    for step in published {
        let number = |path: &str| {
            let found = step.metrics.pointer(path).and_then(Value::as_f64);
            found.unwrap_or_else(|| panic!("step {} has no {path}: {}", step.id, step.metrics))
        };
        assert!(number("/change_norm") > 0.0);
        assert!(number("/proof/tokens") > 0.0);
        for gap in ["/proof", "/parity"] {
            assert!(number(&format!("{gap}/mean")) <= 1e-4, "{}", step.metrics);
            assert!(number(&format!("{gap}/max")) <= 1e-3, "{}", step.metrics);
        }
    }
    let digests: Vec<String> = running
        .journal()
        .adapters()
        .unwrap()
        .into_iter()
        .map(|row| row.digest)
        .collect();
    let mut different = digests.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), digests.len());
}
