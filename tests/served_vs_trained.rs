//! What was recorded when a token was sampled is what the trainer computes for it under the same version:
//! mean difference at most 1e-4, largest at most 1e-3, in nats.
//!
//! Recorded by the engine in decode steps, batched with strangers, over reused attention memory; computed
//! by `Model::score`, the forward pass that is differentiated, in one piece and from the adapter's files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and this one prints its figures"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use clawhost_journal::{TurnRecord, TurnState};
use clawhost_policy::{Engine, Learned, Sequence};
use clawhost_tests::Running;
use clawhost_training::Parameters;
use serde_json::{Value, json};

/// Versions of which turns are compared.
const VERSIONS: usize = 4;
/// More sessions than there are.
const MANY: u32 = 10_000;
/// Longer than it takes on any machine to train that many versions.
const LONGEST: Duration = Duration::from_secs(600);

/// Differences between recorded and computed log-probs.
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
fn turns(running: &Running) -> Vec<TurnRecord> {
    let sessions = running.journal().sessions(MANY).unwrap();
    let of = |id| running.journal().session_turns(id).unwrap();
    sessions
        .iter()
        .flat_map(|session| of(&session.id))
        .collect()
}

/// The versions that replied.
fn versions(turns: &[TurnRecord]) -> BTreeSet<u64> {
    turns.iter().map(|turn| turn.adapter_version).collect()
}

/// Recorded tokens of a turn, computed again under what was learned; none for the base model.
fn computed(engine: &Engine, learned: Option<&Learned>, turn: &TurnRecord) -> Vec<f32> {
    let completion = turn.completion.as_ref().unwrap();
    let tokens = [&turn.prompt_ids[..], &completion.token_ids].concat();
    let sequence = Sequence {
        tokens: &tokens,
        start: turn.prompt_ids.len(),
        // A greedy reply is recorded with the log-probs of temperature 1.
        temperature: if turn.temperature > 0.0 {
            turn.temperature
        } else {
            1.0
        },
        candidates: clawhost_policy::Candidates::None,
    };
    let scored = match learned {
        Some(learned) => learned.score(engine.model(), &[sequence]),
        None => engine.model().score(None, &[sequence]),
    };
    let scored = scored.unwrap();
    scored.into_iter().next().unwrap().logprobs
}

/// A version as its files have it; none for the base model.
fn learned(running: &Running, version: u64) -> Option<Learned> {
    let rows = running.journal().adapters().unwrap();
    let row = rows.iter().find(|row| row.version == version)?;
    let path = running.data.path().join(Path::new(&row.path));
    let learned = Learned::load(&path, running.engine().model()).unwrap();
    assert_eq!(learned.digest(), row.digest);
    Some(learned)
}

/// One conversation that is praised and scolded by turns.
async fn converse(running: &Running, topic: &str, fields: Value, rounds: usize) {
    let mut talk = running.talk().with(fields);
    talk.say(&format!(
        "A shop sells {topic}. Tom buys 4 and then 3 more. How many does he have?"
    ))
    .await;
    for round in 0..rounds {
        let text = match round % 3 {
            0 => "That's wrong, please do it again as one plain sentence.",
            1 => "Thanks, perfect!",
            _ => "Next one: 6 cups and 5 cups, how many cups?",
        };
        // A stream now and then: it must make no difference.
        if round % 2 == 0 {
            talk.say_streaming(text).await;
        } else {
            talk.say(text).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_log_probs_are_what_training_computes() {
    let running = Running::start().await;
    agree(&running).await;
    let learned = learned(&running, 1).unwrap();
    assert!(learned.adapter().is_some());
}

/// The same where every version is a whole copy of the weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_log_probs_of_all_parameters_are_what_training_computes() {
    let running = Running::with(|config| {
        config.training.parameters = Parameters::Full;
        config.training.optimizer.learning_rate = 4e-4;
    })
    .await;
    agree(&running).await;
    let learned = learned(&running, 1).unwrap();
    assert!(learned.adapter().is_none());
}

/// Talks until enough versions have replied, and compares what was recorded with what each version computes.
async fn agree(running: &Running) {
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
    // At least twice, and then until turns of enough versions were recorded: how many a step takes at
    // once depends on how fast the machine trains.
    for round in 1.. {
        let [a, b, c, d, e, f] = ways.each_ref().map(|(topic, fields)| {
            // Different openings in every round, so that none is a retry.
            let seen = running.journal().sessions(MANY).unwrap().len();
            let topic = format!("{topic} and {} other things", seen + 3);
            let fields = fields.clone();
            async move { converse(running, &topic, fields, 6).await }
        });
        tokio::join!(a, b, c, d, e, f);
        running.settled().await;
        let versions = versions(&turns(running)).len();
        if round >= 2 && versions >= VERSIONS {
            break;
        }
        assert!(
            began.elapsed() < LONGEST,
            "after {round} rounds only {versions} versions have replied"
        );
    }

    let engine = running.engine();
    let mut gaps: BTreeMap<u64, Gap> = BTreeMap::new();
    let (mut all, mut elsewhere) = (Gap::default(), Gap::default());
    let turns = turns(running);
    let last = *versions(&turns).last().unwrap();
    let adapters: BTreeMap<u64, Option<Learned>> = (0..=last)
        .map(|version| (version, learned(running, version)))
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
        // A comparison that could not fail would show nothing: under another version it does.
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
async fn every_published_step_carries_the_same_proof() {
    let running = Running::start().await;
    converse(&running, "apples", json!({}), 6).await;
    running.settled().await;
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
