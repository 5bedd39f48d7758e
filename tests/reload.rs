//! A plugin is edited while a server talks: the new build judges the next turn, or takes part in the next step; a broken
//! one is refused with its reason and the one before stays in use, and every turn is judged exactly once. A judge whose
//! grant is taken back judges nothing until it has it again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_journal::{JudgingState, TurnId, VerdictOutcome};
use clawhost_tests::{Command, Running, Script};
use serde_json::{Value, json};
use tempfile::TempDir;

const OLD: &[u8] = include_bytes!("../plugins/artifacts/judge-minimal.wasm");
const NEW: &[u8] = include_bytes!("../plugins/artifacts/judge-next-state.wasm");

/// Writes a build beside its place and moves it there, as build tools do.
fn build(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

/// What is told of the one judge.
async fn judge(running: &Running) -> Value {
    let plugins = running.client.get("/v1/plugins").await;
    plugins.ok()["data"][0].clone()
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
    let command = format!(
        "clawhost plugin grant {} model --data {}",
        path.display(),
        running.data.path().display()
    );
    assert!(reason.ends_with(&command), "{reason}");
    let digest = told["refused"]["digest"].as_str().unwrap().to_owned();
    let grants = format!(
        "[{digest}]\nplugin = \"mine\"\nat_ms = 0\n[{digest}.grants]\nallow = [\"model\"]\n"
    );
    build(&running.data.path().join("grants.toml"), grants.as_bytes());
    let taken = |told: &Value| told["digest"] == digest.as_str();
    let told = until(&running, "it judges once it is granted", taken).await;
    assert_eq!(told["refused"], Value::Null);
}

/// What these grants are worth: written where the server looks.
fn grant(data: &Path, digest: &str, grants: &str) {
    let text = format!("[{digest}]\nplugin = \"mine\"\nat_ms = 0\n[{digest}.grants]\n{grants}\n");
    build(&data.join("grants.toml"), text.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_whose_grant_is_taken_back_gives_no_verdict_until_it_has_it_again() {
    let llm = include_bytes!("../plugins/artifacts/judge-llm.wasm");
    let digest = clawhost_plugins::digest(llm);
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, llm);
    // What a judge asks ends with a full stop.
    let scripts = [
        Script::reply('?', &["It is so"]),
        Script::reply('.', &["score: 1"]),
    ];
    let model = files.path().join("model");
    std::fs::create_dir(&model).unwrap();
    Script::save(&scripts, &model);
    let (load, asked) = (
        vec![path.clone()],
        "allow = [\"model\"]\nmodels = [\"judge\"]",
    );
    let running = Running::with(|config| {
        grant(&config.server.data, &digest, asked);
        config.load = load;
        config.model.dir = Some(model);
        config.training.enabled = false;
    })
    .await;
    let data = running.data.path();
    let judged = async || {
        let mut talk = running.talk();
        let turn = talk.say("Is it so?").await.turn();
        talk.say("Thanks, and is it so?").await;
        let record = running.judged(turn).await;
        let verdict = running.journal().verdicts(turn).unwrap().remove(0);
        (record.reason, verdict.outcome)
    };
    let plus = VerdictOutcome::Verdict {
        reward: 1.0,
        accept: true,
    };
    assert_eq!(judged().await, (None, plus.clone()));

    // Everything taken back: it is not asked, and no turn is a zero.
    build(&data.join("grants.toml"), b"");
    let told = until(&running, "it is not asked any more", |told| {
        told["revoked"].is_object()
    })
    .await;
    let reason = told["revoked"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("model") && reason.contains("not granted"),
        "{reason}"
    );
    assert_eq!(
        (&told["digest"], &told["granted"]),
        (&json!(digest), &json!([]))
    );
    let none = VerdictOutcome::None {
        reason: "grant revoked".to_owned(),
    };
    let said = Some("no verdict: grant revoked".to_owned());
    assert_eq!(judged().await, (said, none));
    let plugins = running.client.get("/v1/plugins").await;
    assert!(plugins.ok()["data"][0]["revoked"].is_object());
    let status = Command::new(&["status", "--data", &data.display().to_string()]).run();
    assert!(status.stdout.contains("not asked any more"), "{status:?}");

    // Another model than before: it is asked again, and gets only what it is granted now.
    grant(data, &digest, "allow = [\"model\"]\nmodels = [\"teacher\"]");
    let narrow = |told: &Value| told["granted"] == json!(["model", "model=teacher"]);
    let told = until(&running, "it has another grant", narrow).await;
    assert_eq!(told["revoked"], Value::Null);
    let (reason, _) = judged().await;
    assert_eq!(reason.as_deref(), Some("no verdict: plugin-error: denied"));

    // A file that cannot be read takes nothing back and gives nothing, and is told.
    build(&data.join("grants.toml"), b"[never a digest]");
    let told = until(&running, "the grants are refused", |told| {
        told["refused"].is_object()
    })
    .await;
    assert_eq!(
        (&told["revoked"], &told["digest"]),
        (&Value::Null, &json!(digest))
    );

    grant(data, &digest, asked);
    let whole = |told: &Value| told["granted"] == json!(["model", "model=judge"]);
    let told = until(&running, "it has its grant again", whole).await;
    assert_eq!(
        (&told["revoked"], &told["refused"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(judged().await, (None, plus));
}

/// The digest of the loss that a turn trained with.
async fn trained_by(running: &Running) -> String {
    let mut talk = running.talk();
    let turn = talk.say("What is 2 + 2?").await.turn();
    talk.say("Thanks, that is perfect!").await;
    let sample = running.trained(turn).await;
    let step = running
        .journal()
        .step(sample.step.unwrap())
        .unwrap()
        .unwrap();
    let digest = &step.metrics["components"]["loss"]["digest"];
    digest.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_loss_takes_part_in_the_next_step_and_a_broken_one_in_none() {
    let ppo = include_bytes!("../plugins/artifacts/loss-ppo-clip.wasm");
    let cispo = include_bytes!("../plugins/artifacts/loss-cispo.wasm");
    let distill = include_bytes!("../plugins/artifacts/loss-distill-topk.wasm");
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, ppo);
    let load = vec![path.clone()];
    let running = Running::with(|config| {
        config.load = load;
        config.training.batch = 1;
        // There is no teacher for a loss that reads one.
        config.training.method = clawhost_training::Learning::Binary;
        // The reward itself, so that a second thanks is a signal as well.
        config.training.estimator = clawhost_training::advantage::Estimator::Raw;
    })
    .await;
    let (first, second) = (
        clawhost_plugins::digest(ppo),
        clawhost_plugins::digest(cispo),
    );
    assert_eq!(judge(&running).await["kind"], "loss");
    assert_eq!(trained_by(&running).await, first);

    build(&path, cispo);
    until(&running, "the new loss is used", |told| {
        told["digest"] == second.as_str()
    })
    .await;
    assert_eq!(trained_by(&running).await, second);

    // One that needs a teacher where there is none, one that is no loss, and one that is nothing.
    let rloo = include_bytes!("../plugins/artifacts/advantage-rloo.wasm");
    for (bytes, why) in [
        (&distill[..], "there is no teacher"),
        (&rloo[..], "is no loss any more"),
        (b"never a component", "not WebAssembly"),
    ] {
        build(&path, bytes);
        let refused = |told: &Value| {
            let reason = told["refused"]["reason"].as_str();
            reason.is_some_and(|reason| reason.contains(why))
        };
        let told = until(&running, why, refused).await;
        assert_eq!(told["digest"], second.as_str());
        assert_eq!(trained_by(&running).await, second);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_extractor_is_shown_the_next_turn() {
    let old = include_bytes!("../plugins/artifacts/hint-next-state.wasm");
    // The same component with a section that nobody reads: another build by its digest.
    let new = [&old[..], b"\x00\x06\x05again"].concat();
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, old);
    let load = vec![path.clone()];
    let running = Running::with(|config| {
        config.load = load;
        config.training.enabled = false;
    })
    .await;
    let hinted_by = async || {
        let mut talk = running.talk();
        let turn = talk.say("What is 2 + 2?").await.turn();
        talk.say("No. Please answer in one short French sentence.")
            .await;
        running.judged(turn).await;
        let hints = running.journal().hints(turn).unwrap();
        assert_eq!(hints.len(), 1, "{hints:?}");
        hints[0].digest.clone()
    };
    assert_eq!(hinted_by().await, clawhost_plugins::digest(old));
    build(&path, &new);
    let digest = clawhost_plugins::digest(&new);
    until(&running, "the new build is used", |told| {
        told["digest"] == digest.as_str()
    })
    .await;
    assert_eq!(hinted_by().await, digest);
}
