//! If three of ten judge calls fail, training gives the same result as without those conversations.
//!
//! A server collects and judges, and a second one on the same data trains, so that the result does not depend on their
//! relative speed. The last letter of a conversation's name selects what the judge does with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clawhost::config::Config;
use clawhost::serve::{Server, Settings};
use clawhost_journal::{
    AdapterRow, Journal, JudgingState, SampleRecord, SampleState, VerdictOutcome,
};
use clawhost_plugins::{Limits, TICK};
use clawhost_tests::{Client, until, user};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tempfile::TempDir;

use super::judge::Judge;

/// Conversations.
const TALKS: usize = 40;
/// Each kind of failure and its number: twelve of forty.
const FAILURES: [(char, &str); 4] = [
    ('t', "trap"),
    ('l', "cpu"),
    ('e', "plugin-error: transient"),
    ('g', "bad-output"),
];
const TIMES: usize = 3;
/// Update rate of the running mean.
const RATE: f64 = 0.25;
/// Initial running mean; a zero reward would change it.
const START: f64 = 0.5;
const KEY: &str = "training.baselines";

/// `t` traps, `l` loops until it is stopped, `e` returns a transient error, `g` returns NaN, `p` returns reward 1, and
/// anything else reward -1.
const FAILING_JUDGE: &str = r#"
    (local $letter i32)
    (local.set $letter (i32.load8_u (i32.add (local.get 0) (i32.sub (local.get 1) (i32.const 1)))))
    (if (i32.eq (local.get $letter) (i32.const 116)) (then (unreachable)))
    (if (i32.eq (local.get $letter) (i32.const 108)) (then (loop $again (br $again))))
    (if (i32.eq (local.get $letter) (i32.const 101)) (then
      (i32.store8 (i32.const 16) (i32.const 1))
      (i32.store8 (i32.const 20) (i32.const 3))
      (i32.store (i32.const 24) (i32.const 0))
      (i32.store (i32.const 28) (i32.const 0))
      (return (i32.const 16))))
    (if (i32.eq (local.get $letter) (i32.const 103)) (then (return (call $verdict (f32.const nan)))))
    (if (i32.eq (local.get $letter) (i32.const 112)) (then (return (call $verdict (f32.const 1)))))
    (call $verdict (f32.const -1))
"#;

fn config(data: &Path, judge: &Path, trains: bool) -> Config {
    let mut config = Config::parse("[server]\nport = 0\n").unwrap();
    config.server.data_dir = data.to_owned();
    config.plugins.files = vec![judge.to_owned()];
    // One after the other, so that samples are queued in the order of their turns.
    config.judging.max_concurrent_turns = 1;
    config.judging.max_retries = 1;
    config.judging.retry_backoff = std::time::Duration::from_millis(1);
    let judge = config.plugins.config.entry("moody".to_owned()).or_default();
    judge.limits = Limits {
        fuel: 50_000_000,
        cpu_time: 50 * TICK,
        ..Limits::default()
    }
    .into();
    config.training.enabled = trains;
    config.training.batch_size = 4;
    config.training.min_batch_size = 1;
    config.training.max_wait = std::time::Duration::from_secs_f64(0.0);
    config.training.nice = 0;
    config.training.num_epochs = 1;
    config.training.max_staleness = 1000;
    // An advantage is a reward minus the running mean, without a factor.
    config.training.teacher.reward_weight = 1.0;
    config.training.initial_baseline = START;
    config.training.baseline_rate = RATE;
    config
}

/// The names of all conversations, in order.
fn names() -> Vec<String> {
    let mut letters: Vec<char> = FAILURES.iter().flat_map(|(l, _)| [*l; TIMES]).collect();
    let judged = TALKS - letters.len();
    letters.extend((0..judged).map(|number| if number % 3 == 0 { 'm' } else { 'p' }));
    letters.shuffle(&mut ChaCha8Rng::seed_from_u64(30));
    let name = |(number, letter): (usize, char)| format!("talk-{number:02}-{letter}");
    letters.into_iter().enumerate().map(name).collect()
}

/// Whether the judge fails on it.
fn fails(name: &str) -> bool {
    FAILURES.iter().any(|(letter, _)| name.ends_with(*letter))
}

/// Result of a training run.
struct TrainingResult {
    adapters: Vec<AdapterRow>,
    /// By step, in order.
    samples: Vec<Vec<SampleRecord>>,
    baselines: BTreeMap<String, f64>,
    journal: Journal,
    _dir: TempDir,
}

/// Holds these conversations, judges them, and trains on the samples.
async fn train(names: &[String]) -> TrainingResult {
    let dir = TempDir::new().unwrap();
    let judge = Judge {
        imports: "",
        body: FAILING_JUDGE,
    };
    let judge = judge.save(dir.path(), "moody");
    let data = dir.path().join("data");
    let server = Server::start(Settings::from(config(&data, &judge, false)));
    let server = server.await.unwrap();
    let client = Client::new(server.url());
    for name in names {
        let number: u64 = name[5..7].parse().unwrap();
        let fields = json!({
            "temperature": 0.9, "max_tokens": 60, "seed": number, "user": format!("person {}", number % 2),
        });
        let first = user(&format!(
            "Kim has {} cards and gets 4 more. How many?",
            number + 3
        ));
        let chat = client
            .chat(std::slice::from_ref(&first))
            .with(fields.clone());
        let answer = chat.header("x-session-id", name).send().await;
        let reply = clawhost_tests::assistant(answer.text());
        let more = [first, reply, user("And then?")];
        let chat = client.chat(&more).with(fields);
        chat.header("x-session-id", name).send().await.ok();
    }
    until(server.journal(), "every conversation is judged", || {
        let counts = server.journal().counts().unwrap();
        let ready = counts.judging.get(&JudgingState::Ready).copied();
        (ready.unwrap_or(0) == 0).then_some(())
    })
    .await;
    server.stop().await;

    let server = Server::start(Settings::from(config(&data, &judge, true)));
    let server = server.await.unwrap();
    until(server.journal(), "all samples are trained", || {
        let queued = server.journal().queued_count().unwrap();
        (queued == 0 && !server.training().snapshot().running).then_some(())
    })
    .await;
    server.stop().await;
    let journal = Journal::open_read_only(&data).unwrap();
    let mut steps = journal.steps(u32::MAX).unwrap();
    steps.reverse();
    let text = journal.meta(KEY).unwrap().unwrap();
    let means: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    TrainingResult {
        adapters: journal.adapters().unwrap(),
        samples: steps
            .iter()
            .map(|step| journal.samples_of_step(step.id).unwrap())
            .collect(),
        baselines: means
            .into_iter()
            .map(|(key, mean)| (key, mean.parse().unwrap()))
            .collect(),
        journal,
        _dir: dir,
    }
}

impl TrainingResult {
    /// Every sample has a verdict of the judge, and advantages and running means depend on those rewards alone.
    fn assert_only_verdicts_count(&self) {
        let mut means: BTreeMap<String, f64> = BTreeMap::new();
        for samples in &self.samples {
            let before = means.clone();
            let mut seen: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for sample in samples {
                let verdicts = self.journal.verdicts(sample.turn).unwrap();
                let reward = sample.reward.unwrap();
                let given = VerdictOutcome::Verdict {
                    reward,
                    accept: true,
                };
                assert_eq!(verdicts.len(), 1);
                assert_eq!(verdicts[0].outcome, given, "turn {}", sample.turn);
                assert!(!fails(sample.session.as_str()));
                assert_eq!(
                    reward,
                    if sample.session.as_str().ends_with('p') {
                        1.0
                    } else {
                        -1.0
                    }
                );
                let expected =
                    f64::from(reward) - before.get(&sample.baseline_key).unwrap_or(&START);
                match sample.state {
                    SampleState::Trained => {
                        let advantage = f64::from(sample.advantage.unwrap());
                        assert!(
                            (advantage - expected).abs() < 1e-6,
                            "{advantage} is not {expected}"
                        );
                    }
                    _ => assert_eq!(expected, 0.0, "{:?}", sample.reason),
                }
                seen.entry(&sample.baseline_key)
                    .or_default()
                    .push(f64::from(reward));
            }
            for (key, rewards) in seen {
                let observed = rewards.iter().sum::<f64>() / rewards.len() as f64;
                let mean = before
                    .get(key)
                    .map_or(observed, |mean| mean + RATE * (observed - mean));
                means.insert(key.to_owned(), mean);
            }
        }
        assert_eq!(
            means.keys().collect::<Vec<_>>(),
            self.baselines.keys().collect::<Vec<_>>()
        );
        for (key, mean) in &means {
            assert!((mean - self.baselines[key]).abs() < 1e-12, "{key}: {mean}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_judge_calls_do_not_change_the_training_result() {
    let names = names();
    let failing: BTreeSet<&String> = names.iter().filter(|name| fails(name)).collect();
    assert_eq!(failing.len() * 10, TALKS * 3);
    let suffered = train(&names).await;
    suffered.assert_only_verdicts_count();
    let counts = suffered.journal.counts().unwrap();
    let reasons: BTreeMap<&str, u64> = FAILURES
        .iter()
        .map(|(_, reason)| (*reason, TIMES as u64))
        .collect();
    let counted: BTreeMap<&str, u64> = counts
        .no_verdict
        .iter()
        .map(|(reason, count)| (reason.as_str(), *count))
        .collect();
    assert_eq!(counted, reasons);
    assert_eq!(counts.verdicts, (TALKS - failing.len()) as u64);
    for name in failing {
        let turns = suffered
            .journal
            .session_turns(&name.as_str().into())
            .unwrap();
        assert_eq!(turns[0].judging, JudgingState::Skipped);
        let samples = suffered.journal.samples_of_turn(turns[0].id).unwrap();
        assert!(samples.is_empty(), "{name} has a sample");
    }

    let spared: Vec<String> = names.iter().filter(|name| !fails(name)).cloned().collect();
    let spared = train(&spared).await;
    let chain = |learned: &TrainingResult| -> Vec<(u64, String)> {
        let rows = learned.adapters.iter();
        rows.map(|row| (row.version, row.digest.clone())).collect()
    };
    assert!(chain(&suffered).len() >= 5, "{:?}", chain(&suffered));
    let rewards = |learned: &TrainingResult| -> Vec<(String, Option<f32>, Option<f32>)> {
        let samples = learned.samples.iter().flatten();
        samples
            .map(|s| (s.session.to_string(), s.reward, s.advantage))
            .collect()
    };
    assert_eq!(rewards(&suffered), rewards(&spared));
    assert_eq!(suffered.baselines, spared.baselines);
    assert_eq!(chain(&suffered), chain(&spared));
}
