//! Hot reload of plugins: a new build judges the next turn, or takes part in the next training step; a broken build is
//! rejected with its reason and the previous one stays in use; every turn is judged exactly once. A judge whose grant
//! is revoked is not called until it is granted again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use clawhost::config::ExperienceMode;
use clawhost_journal::{JudgingState, TurnId, VerdictOutcome};
use clawhost_tests::{Command, Script, TestServer, train_on_rewards};
use serde_json::{Value, json};
use tempfile::TempDir;

const OLD: &[u8] = include_bytes!("../plugins/artifacts/judge-minimal.wasm");
const NEW: &[u8] = include_bytes!("../plugins/artifacts/judge-next-state.wasm");

/// Writes a build to a temporary file and renames it, as build tools do.
fn build(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

/// Status of the only judge.
async fn judge(running: &TestServer) -> Value {
    let plugins = running.client.get("/v1/plugins").await;
    plugins.ok()["data"][0].clone()
}

/// Waits until the status of the judge satisfies `wanted`.
async fn until(running: &TestServer, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = std::time::Instant::now();
    loop {
        let status = judge(running).await;
        if wanted(&status) {
            return status;
        }
        assert!(
            began.elapsed() < clawhost_tests::WAIT_TIMEOUT,
            "timed out waiting until {what}: {status}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Digest of the build that judged a turn with one verdict.
fn judged_by(running: &TestServer, turn: TurnId) -> String {
    let verdicts = running.journal().verdicts(turn).unwrap();
    assert_eq!(verdicts.len(), 1, "turn {turn}: {verdicts:?}");
    verdicts[0].digest.clone().unwrap()
}

/// Sends two messages, so that the first reply has a next state, and returns the digest that judged it.
async fn next_judged(running: &TestServer, opening: &str) -> String {
    let mut conversation = running.conversation();
    let turn = conversation.send_message(opening).await.turn();
    conversation.send_message("Thanks, that is perfect!").await;
    running.wait_until_judged(turn).await;
    judged_by(running, turn)
}

#[tokio::test(flavor = "multi_thread")]
async fn reloaded_judge_judges_the_next_turn_and_every_turn_once() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, OLD);
    let load = vec![path.clone()];
    let started = TestServer::with(|config| {
        config.plugins.files = load;
        // Only the judge is loaded.
        config.training.enabled = false;
        config.experience.mode = ExperienceMode::Off;
    });
    let running = Arc::new(started.await);
    let first = judge(&running).await["digest"].as_str().unwrap().to_owned();

    // Conversations continue meanwhile.
    let over = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(Mutex::new(Vec::new()));
    let talking = tokio::spawn({
        let (running, over, turns) = (running.clone(), over.clone(), turns.clone());
        async move {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                let mut conversation = running.conversation();
                count += 1;
                let mut previous = None;
                // The last reply has no next state.
                for text in [&format!("What is {count} + 1?"), "And then?", "Thanks!"] {
                    let turn = conversation.send_message(text).await.turn();
                    turns.lock().unwrap().extend(previous.replace(turn));
                }
            }
        }
    });
    // Waits until this build has judged a turn of those conversations.
    let joins_in = async |digest: &str| {
        let judged_one = || {
            let turns = turns.lock().unwrap();
            let verdicts = |turn: &TurnId| running.journal().verdicts(*turn).unwrap();
            let mut verdicts = turns.iter().rev().flat_map(verdicts);
            verdicts
                .any(|verdict| verdict.digest.as_deref() == Some(digest))
                .then_some(())
        };
        running.until("the build judges a turn", judged_one).await;
    };
    assert_eq!(next_judged(&running, "Hello!").await, first);
    joins_in(&first).await;

    build(&path, NEW);
    let changed = |status: &Value| status["digest"].as_str() != Some(&first);
    let status = until(&running, "the new build judges", changed).await;
    let second = status["digest"].as_str().unwrap().to_owned();
    assert_eq!(status["refused"], Value::Null);
    assert_eq!(next_judged(&running, "Good morning!").await, second);
    joins_in(&second).await;

    // A broken build is rejected with its reason, and nothing else changes.
    build(&path, b"never a component");
    let refused = |status: &Value| status["refused"].is_object();
    let status = until(&running, "the broken build is refused", refused).await;
    assert_eq!(status["digest"], second.as_str());
    let reason = status["refused"]["reason"].as_str().unwrap();
    assert!(reason.contains("not WebAssembly"), "{reason}");
    assert_eq!(next_judged(&running, "Good evening!").await, second);
    let data = running.data.path().display().to_string();
    let status = Command::new(&["status", "--data", &data]).run();
    assert!(
        status.stdout.contains("rejected") && status.stdout.contains("not WebAssembly"),
        "{status:?}"
    );

    // A reload request applies at once, and the next good build clears the rejection.
    build(&path, OLD);
    let answer = running
        .client
        .post("/v1/plugins/reload", &Value::Null)
        .await;
    assert_eq!(answer.ok()["data"][0]["digest"], first.as_str());
    assert_eq!(answer.body["data"][0]["refused"], Value::Null);
    assert_eq!(next_judged(&running, "Good night!").await, first);

    over.store(true, Ordering::Relaxed);
    talking.await.unwrap();
    let turns = std::mem::take(&mut *turns.lock().unwrap());
    let mut seen = std::collections::BTreeSet::new();
    for turn in turns {
        let state = running.wait_until_judged(turn).await.judging;
        assert!(matches!(state, JudgingState::Done | JudgingState::Skipped));
        seen.insert(judged_by(&running, turn));
        assert_eq!(running.journal().judgements(turn).unwrap().len(), 1);
        assert_eq!(running.journal().receipts(turn).unwrap().len(), 1);
    }
    assert!(seen.contains(&first) && seen.contains(&second), "{seen:?}");
    assert_eq!(seen.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn build_with_missing_grants_waits_for_its_grant() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, OLD);
    let load = vec![path.clone()];
    let running = TestServer::with(|config| config.plugins.files = load).await;
    let first = judge(&running).await["digest"].clone();
    let greedy = include_bytes!("../plugins/artifacts/judge-model.wasm");
    build(&path, greedy);
    let refused = |status: &Value| status["refused"].is_object();
    let status = until(&running, "it is refused", refused).await;
    assert_eq!(status["digest"], first);
    let reason = status["refused"]["reason"].as_str().unwrap();
    let command = format!(
        "clawhost plugin grant {} model --data {}",
        path.display(),
        running.data.path().display()
    );
    assert!(reason.ends_with(&command), "{reason}");
    let digest = status["refused"]["digest"].as_str().unwrap().to_owned();
    let grants = format!(
        "[{digest}]\nplugin = \"mine\"\nat_ms = 0\n[{digest}.grants]\nallow = [\"model\"]\n"
    );
    build(&running.data.path().join("grants.toml"), grants.as_bytes());
    let taken = |status: &Value| status["digest"] == digest.as_str();
    let status = until(&running, "it judges once it is granted", taken).await;
    assert_eq!(status["refused"], Value::Null);
}

/// Writes grants to the server's grants file.
fn grant(data: &Path, digest: &str, grants: &str) {
    let text = format!("[{digest}]\nplugin = \"mine\"\nat_ms = 0\n[{digest}.grants]\n{grants}\n");
    build(&data.join("grants.toml"), text.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn judge_with_revoked_grant_gives_no_verdict_until_granted_again() {
    let llm = include_bytes!("../plugins/artifacts/judge-llm.wasm");
    let digest = clawhost_plugins::digest(llm);
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, llm);
    // The judge's prompt ends with a full stop.
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
    let running = TestServer::with(|config| {
        grant(&config.server.data_dir, &digest, asked);
        config.plugins.files = load;
        config.model.path = Some(model);
        config.training.enabled = false;
    })
    .await;
    let data = running.data.path();
    let judged = async || {
        let mut conversation = running.conversation();
        let turn = conversation.send_message("Is it so?").await.turn();
        conversation.send_message("Thanks, and is it so?").await;
        let record = running.wait_until_judged(turn).await;
        let verdict = running.journal().verdicts(turn).unwrap().remove(0);
        (record.reason, verdict.outcome)
    };
    let plus = VerdictOutcome::Verdict {
        reward: 1.0,
        accept: true,
    };
    assert_eq!(judged().await, (None, plus.clone()));

    // All grants revoked: the judge is not called, and no turn gets a zero reward.
    build(&data.join("grants.toml"), b"");
    let status = until(&running, "it is unloaded", |status| {
        status["revoked"].is_object()
    })
    .await;
    let reason = status["revoked"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("model") && reason.contains("not been granted"),
        "{reason}"
    );
    assert_eq!(
        (&status["digest"], &status["granted"]),
        (&json!(digest), &json!([]))
    );
    let none = VerdictOutcome::None {
        reason: "grant revoked".to_owned(),
    };
    let reason = Some("no verdict: grant revoked".to_owned());
    assert_eq!(judged().await, (reason, none));
    let plugins = running.client.get("/v1/plugins").await;
    assert!(plugins.ok()["data"][0]["revoked"].is_object());
    let status = Command::new(&["status", "--data", &data.display().to_string()]).run();
    assert!(status.stdout.contains("unloaded"), "{status:?}");

    // A grant for another model: the judge is called again, with only the current grants.
    grant(data, &digest, "allow = [\"model\"]\nmodels = [\"teacher\"]");
    let narrow = |status: &Value| status["granted"] == json!(["model", "model=teacher"]);
    let status = until(&running, "it has another grant", narrow).await;
    assert_eq!(status["revoked"], Value::Null);
    let (reason, _) = judged().await;
    assert_eq!(reason.as_deref(), Some("no verdict: plugin-error: denied"));

    // An unreadable file revokes and grants nothing, and is reported.
    build(&data.join("grants.toml"), b"[never a digest]");
    let status = until(&running, "the grants are refused", |status| {
        status["refused"].is_object()
    })
    .await;
    assert_eq!(
        (&status["revoked"], &status["digest"]),
        (&Value::Null, &json!(digest))
    );

    grant(data, &digest, asked);
    let whole = |status: &Value| status["granted"] == json!(["model", "model=judge"]);
    let status = until(&running, "it has its grant again", whole).await;
    assert_eq!(
        (&status["revoked"], &status["refused"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(judged().await, (None, plus));
}

/// Digest of the loss that a turn was trained with.
async fn trained_by(running: &TestServer) -> String {
    let mut conversation = running.conversation();
    let turn = conversation.send_message("What is 2 + 2?").await.turn();
    conversation.send_message("Thanks, that is perfect!").await;
    let sample = running.wait_until_trained(turn).await;
    let step = running
        .journal()
        .step(sample.step.unwrap())
        .unwrap()
        .unwrap();
    let digest = &step.metrics["components"]["loss"]["digest"];
    digest.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn reloaded_loss_is_used_in_the_next_step_and_a_broken_one_is_not() {
    let ppo = include_bytes!("../plugins/artifacts/loss-ppo-clip.wasm");
    let cispo = include_bytes!("../plugins/artifacts/loss-cispo.wasm");
    let distill = include_bytes!("../plugins/artifacts/loss-distill-topk.wasm");
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, ppo);
    let load = vec![path.clone()];
    let running = TestServer::with(|config| {
        config.plugins.files = load;
        config.training.batch_size = 1;
        // No teacher is configured for a loss that needs one.
        train_on_rewards(config);
        // The reward itself, so that a second positive reward is a signal as well.
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
    until(&running, "the new loss is used", |status| {
        status["digest"] == second.as_str()
    })
    .await;
    assert_eq!(trained_by(&running).await, second);

    // One that needs a teacher, one that is not a loss, and one that is not a component.
    let rloo = include_bytes!("../plugins/artifacts/advantage-rloo.wasm");
    for (bytes, why) in [
        (&distill[..], "has no teacher"),
        (&rloo[..], "changed its kind from loss to advantage"),
        (b"never a component", "not WebAssembly"),
    ] {
        build(&path, bytes);
        let refused = |status: &Value| {
            let reason = status["refused"]["reason"].as_str();
            reason.is_some_and(|reason| reason.contains(why))
        };
        let status = until(&running, why, refused).await;
        assert_eq!(status["digest"], second.as_str());
        assert_eq!(trained_by(&running).await, second);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloaded_hint_extractor_gets_the_next_turn() {
    let old = include_bytes!("../plugins/artifacts/hint-next-state.wasm");
    // The same component with an unused custom section: another digest.
    let new = [&old[..], b"\x00\x06\x05again"].concat();
    let files = TempDir::new().unwrap();
    let path = files.path().join("mine.wasm");
    build(&path, old);
    let load = vec![path.clone()];
    let running = TestServer::with(|config| {
        config.plugins.files = load;
        config.training.enabled = false;
    })
    .await;
    let hinted_by = async || {
        let mut conversation = running.conversation();
        let turn = conversation.send_message("What is 2 + 2?").await.turn();
        conversation
            .send_message("No. Please answer in one short French sentence.")
            .await;
        running.wait_until_judged(turn).await;
        let hints = running.journal().hints(turn).unwrap();
        assert_eq!(hints.len(), 1, "{hints:?}");
        hints[0].digest.clone()
    };
    assert_eq!(hinted_by().await, clawhost_plugins::digest(old));
    build(&path, &new);
    let digest = clawhost_plugins::digest(&new);
    until(&running, "the new build is used", |status| {
        status["digest"] == digest.as_str()
    })
    .await;
    assert_eq!(hinted_by().await, digest);
}
