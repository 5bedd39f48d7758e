//! A judge is edited while a server talks: the new build judges the next turn, a broken one is refused with its reason
//! and the one before keeps judging, and every turn is judged exactly once.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_journal::{JudgingState, TurnId};
use clawhost_tests::{Command, Running, become_clawhost};
use serde_json::Value;
use tempfile::TempDir;

const OLD: &[u8] = include_bytes!("../plugins/artifacts/judge-minimal.wasm");
const NEW: &[u8] = include_bytes!("../plugins/artifacts/judge-next-state.wasm");

#[test]
fn clawhost_process() {
    become_clawhost();
}

/// Writes a build beside its place and moves it there, as build tools do.
fn build(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

/// What is told of the one judge.
async fn judge(running: &Running) -> Value {
    let health = running.client.get("/healthz").await;
    health.ok()["plugins"][0].clone()
}

/// Waits until what is told of the judge is as `wanted`.
async fn until(running: &Running, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = std::time::Instant::now();
    loop {
        let told = judge(running).await;
        if wanted(&told) {
            return told;
        }
        assert!(
            began.elapsed() < clawhost_tests::PATIENCE,
            "waited in vain until {what}: {told}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The digest that judged a turn, which has one verdict.
fn judged_by(running: &Running, turn: TurnId) -> String {
    let verdicts = running.journal().verdicts(turn).unwrap();
    assert_eq!(verdicts.len(), 1, "turn {turn}: {verdicts:?}");
    verdicts[0].digest.clone().unwrap()
}

/// Says two things, so that the first reply has a next state, and returns what judged it.
async fn next_judged(running: &Running, opening: &str) -> String {
    let mut talk = running.talk();
    let turn = talk.say(opening).await.turn();
    talk.say("Thanks, that is perfect!").await;
    running.judged(turn).await;
    judged_by(running, turn)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_judge_judges_the_next_turn_and_no_turn_is_lost_or_judged_twice() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, OLD);
    let load = vec![path.clone()];
    let started = Running::with(|config| {
        config.load = load;
        config.training.enabled = false;
    });
    let running = Arc::new(started.await);
    let first = judge(&running).await["digest"].as_str().unwrap().to_owned();

    // Somebody talks all the while.
    let over = Arc::new(AtomicBool::new(false));
    let talking = tokio::spawn({
        let (running, over) = (running.clone(), over.clone());
        async move {
            let mut turns = Vec::new();
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                let mut talk = running.talk();
                count += 1;
                for text in [&format!("What is {count} + 1?"), "And then?", "Thanks!"] {
                    turns.push(talk.say(text).await.turn());
                }
                // Nothing follows the last reply.
                turns.pop();
            }
            turns
        }
    });
    assert_eq!(next_judged(&running, "Hello!").await, first);

    build(&path, NEW);
    let changed = |told: &Value| told["digest"].as_str() != Some(&first);
    let told = until(&running, "the new build judges", changed).await;
    let second = told["digest"].as_str().unwrap().to_owned();
    assert_eq!(told["refused"], Value::Null);
    assert_eq!(next_judged(&running, "Good morning!").await, second);

    // A broken build: refused with its reason, and nothing else changes.
    build(&path, b"never a component");
    let refused = |told: &Value| told["refused"].is_object();
    let told = until(&running, "the broken build is refused", refused).await;
    assert_eq!(told["digest"], second.as_str());
    let reason = told["refused"]["reason"].as_str().unwrap();
    assert!(reason.contains("not WebAssembly"), "{reason}");
    assert_eq!(next_judged(&running, "Good evening!").await, second);
    let data = running.data.path().display().to_string();
    let status = Command::new(&["status", "--data", &data]).run();
    assert!(
        status.stdout.contains("refused") && status.stdout.contains("not WebAssembly"),
        "{status:?}"
    );

    // At once, when asked; and what was refused is forgotten with the next good build.
    build(&path, OLD);
    let answer = running
        .client
        .post("/v1/plugins/reload", &Value::Null)
        .await;
    assert_eq!(answer.ok()["data"][0]["digest"], first.as_str());
    assert_eq!(answer.body["data"][0]["refused"], Value::Null);
    assert_eq!(next_judged(&running, "Good night!").await, first);

    over.store(true, Ordering::Relaxed);
    let turns = talking.await.unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for turn in turns {
        let state = running.judged(turn).await.judging;
        assert!(matches!(state, JudgingState::Done | JudgingState::Skipped));
        seen.insert(judged_by(&running, turn));
        assert_eq!(running.journal().judgements(turn).unwrap().len(), 1);
        assert_eq!(running.journal().receipts(turn).unwrap().len(), 1);
    }
    assert!(seen.contains(&first) && seen.contains(&second), "{seen:?}");
    assert_eq!(seen.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_wants_more_than_it_was_granted_waits_for_its_grant() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, OLD);
    let load = vec![path.clone()];
    let running = Running::with(|config| config.load = load).await;
    let first = judge(&running).await["digest"].clone();
    let greedy = include_bytes!("../plugins/artifacts/judge-model.wasm");
    build(&path, greedy);
    let refused = |told: &Value| told["refused"].is_object();
    let told = until(&running, "it is refused", refused).await;
    assert_eq!(told["digest"], first);
    let reason = told["refused"]["reason"].as_str().unwrap();
    assert!(reason.contains("clawhost plugin grant mine"), "{reason}");
    let digest = told["refused"]["digest"].as_str().unwrap().to_owned();
    let grants = format!(
        "[{digest}]\nplugin = \"mine\"\nat_ms = 0\n[{digest}.grants]\nallow = [\"model\"]\n"
    );
    build(&running.data.path().join("grants.toml"), grants.as_bytes());
    let taken = |told: &Value| told["digest"] == digest.as_str();
    let told = until(&running, "it judges once it is granted", taken).await;
    assert_eq!(told["refused"], Value::Null);
}
