//! Judging the record anew: the same judge says the same, another one's changed verdicts are shown, the same replay
//! gives the same bytes, and the record stays as it is.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use std::path::Path;

use clawhost_journal::TurnId;
use clawhost_tests::{Command, Running};
use serde_json::{Value, json};
use tempfile::TempDir;

const NEXT_STATE: &[u8] = include_bytes!("../plugins/artifacts/judge-next-state.wasm");
const WORD_COUNT: &[u8] = include_bytes!("../plugins/artifacts/judge-minimal.wasm");

/// A server that has judged a conversation and does not train, and the turns that its judges were asked about.
async fn recorded() -> (Running, Vec<TurnId>) {
    let running = Running::with(|config| config.training.enabled = false).await;
    let mut talk = running.talk();
    let mut turns = Vec::new();
    for text in [
        "Tom has 3 apples and gets 4 more. How many now?",
        "Thanks, that is perfect!",
        "No, that is wrong. Please do it again.",
        "Great, thank you!",
        "What is 2 + 2?",
        "Bye.",
    ] {
        turns.push(talk.say(text).await.turn());
    }
    turns.pop();
    for turn in &turns {
        running.judged(*turn).await;
    }
    // The user's word wins over the judges, then and in the replay.
    let feedback = json!({"turn_id": turns[0], "score": -0.5});
    running.client.post("/v1/feedback", &feedback).await.ok();
    running
        .until("the feedback is judged", || {
            let samples = running.journal().samples_of(turns[0]).unwrap();
            samples.iter().find(|s| s.reward == Some(-0.5)).map(|_| ())
        })
        .await;
    (running, turns)
}

fn replay(data: &Path, more: &[&str]) -> String {
    let data = data.display().to_string();
    let arguments = [&["replay", "--data", &data], more].concat();
    let ended = Command::new(&arguments).run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

fn told(data: &Path, more: &[&str]) -> Value {
    serde_json::from_str(&replay(data, &[more, &["--json"]].concat())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_judge_is_shown_by_its_changed_verdicts_and_twice_by_the_same_bytes() {
    let (running, turns) = recorded().await;
    let data = running.data.path();
    let files = TempDir::new().unwrap();
    let save = |name: &str, bytes: &[u8]| {
        let path = files.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let (old, new) = (save("old.wasm", NEXT_STATE), save("new.wasm", WORD_COUNT));
    let before = running.journal().counts().unwrap();

    // The judge of the record, asked the same, says the same.
    let same = told(data, &[]);
    assert_eq!(same["turns"], turns.len(), "{same}");
    assert_eq!(same["agreement"]["same"], same["agreement"]["both"]);
    assert_eq!(same["agreement"]["only_old"], 0);
    assert_eq!(same["changed"], json!([]), "{same}");
    for change in same["next"]["samples"].as_array().unwrap() {
        assert_eq!(change["old"], change["new"], "{same}");
    }

    // Another one: every changed verdict, and what the next batch would be.
    let asked = ["--plugin", &new];
    let other = told(data, &asked);
    let changed = other["changed"].as_array().unwrap();
    let both = other["agreement"]["both"].as_u64().unwrap();
    let kept = other["agreement"]["same"].as_u64().unwrap();
    assert!(both > kept && !changed.is_empty(), "{other}");
    let second = changed.iter().find(|c| c["turn"] == json!(turns[1].0));
    let second = second.unwrap_or(&Value::Null);
    assert_eq!(second["old"]["reward"], -1.0, "{other}");
    assert_ne!(second["new"]["reward"], -1.0);
    assert!(second["new"]["why"].as_str().unwrap().contains("words"));
    assert!(second["next"].as_str().unwrap().contains("that is wrong"));
    let samples = other["next"]["samples"].as_array().unwrap();
    let of = |turn: TurnId| samples.iter().find(|s| s["turn"] == json!(turn.0)).unwrap();
    assert_eq!(of(turns[0])["old"], of(turns[0])["new"], "the user's word");
    let moved = of(turns[1]);
    assert_eq!(moved["new"]["reward"], second["new"]["reward"]);
    assert_ne!(moved["old"]["advantage"], moved["new"]["advantage"]);

    // Twice the same, for people and for programs; and the record knows nothing of it.
    assert_eq!(told(data, &asked), other);
    let text = replay(data, &asked);
    assert_eq!(replay(data, &asked), text);
    let line = format!("turn {} -1 → ", turns[1]);
    assert!(text.contains(&line), "{text}");
    assert_eq!(running.journal().counts().unwrap(), before);

    // Against another component instead of the record: the same two judges, the same difference.
    let against = told(data, &["--plugin", &new, "--against", &old]);
    assert_eq!(against["changed"], other["changed"]);
    let none = told(data, &["--plugin", &new, "--against", &new]);
    assert_eq!(none["changed"], json!([]));

    // Parts of the record.
    assert_eq!(told(data, &["--limit", "2"])["turns"], 2);
    let elsewhere = told(data, &["--session", "nobody"]);
    assert_eq!(elsewhere["turns"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_change_verdicts_too_and_a_fault_is_no_zero() {
    let (running, turns) = recorded().await;
    let files = TempDir::new().unwrap();
    let path = files.path().join("starved.toml");
    std::fs::write(&path, "[judging.limits]\nfuel = 10\n").unwrap();
    let path = path.display().to_string();
    let starved = told(running.data.path(), &["--config", &path]);
    let faults = starved["faults"].as_array().unwrap();
    assert_eq!(faults.len(), turns.len(), "{starved}");
    assert_eq!(faults[0]["reason"], "cpu", "{starved}");
    assert_eq!(starved["agreement"]["both"], 0);
    for change in starved["changed"].as_array().unwrap() {
        assert_eq!(change["new"]["reward"], Value::Null);
    }
    let queue = starved["next"]["samples"].as_array().unwrap();
    let left = queue.iter().filter(|s| s["new"]["reward"] != Value::Null);
    assert_eq!(
        left.count(),
        1,
        "only what the user said is left: {starved}"
    );
}
