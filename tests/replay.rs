//! Replay of recorded turns: the same judge gives the same verdicts, another judge's changed verdicts are listed,
//! output is deterministic, and the journal is unchanged.

use std::path::Path;

use clawhost_journal::TurnId;
use clawhost_tests::{Command, TestServer};
use serde_json::{Value, json};
use tempfile::TempDir;

const NEXT_STATE: &[u8] = include_bytes!("../plugins/artifacts/judge-next-state.wasm");
const WORD_COUNT: &[u8] = include_bytes!("../plugins/artifacts/judge-minimal.wasm");

/// A server that has judged a conversation, without training, and the judged turns.
async fn recorded() -> (TestServer, Vec<TurnId>) {
    let running = TestServer::with(|config| config.training.enabled = false).await;
    let mut conversation = running.conversation();
    let mut turns = Vec::new();
    for text in [
        "Tom has 3 apples and gets 4 more. How many now?",
        "Thanks, that is perfect!",
        "No, that is wrong. Please do it again.",
        "Great, thank you!",
        "What is 2 + 2?",
        "Bye.",
    ] {
        turns.push(conversation.send_message(text).await.turn());
    }
    turns.pop();
    for turn in &turns {
        running.wait_until_judged(*turn).await;
    }
    // User feedback overrides the judges, in the recording and in the replay.
    let feedback = json!({"turn_id": turns[0], "score": -0.5});
    running.client.post("/v1/feedback", &feedback).await.ok();
    running
        .until("the feedback is judged", || {
            let samples = running.journal().samples_of_turn(turns[0]).unwrap();
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

fn replay_json(data: &Path, more: &[&str]) -> Value {
    serde_json::from_str(&replay(data, &[more, &["--json"]].concat())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_lists_changed_verdicts_deterministically() {
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

    // The recorded judge gives the same verdicts.
    let same = replay_json(data, &[]);
    assert_eq!(same["turns"], turns.len(), "{same}");
    assert_eq!(same["agreement"]["same"], same["agreement"]["both"]);
    assert_eq!(same["agreement"]["only_old"], 0);
    assert_eq!(same["changed"], json!([]), "{same}");
    for change in same["next"]["samples"].as_array().unwrap() {
        assert_eq!(change["old"], change["new"], "{same}");
    }

    // Another judge: all changed verdicts, and the next batch.
    let asked = ["--plugin", &new];
    let other = replay_json(data, &asked);
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

    // The output is deterministic as text and as JSON, and the journal is unchanged.
    assert_eq!(replay_json(data, &asked), other);
    let text = replay(data, &asked);
    assert_eq!(replay(data, &asked), text);
    let line = format!("turn {} -1 → ", turns[1]);
    assert!(text.contains(&line), "{text}");
    assert_eq!(running.journal().counts().unwrap(), before);

    // Against another component instead of the recording: the same two judges, the same differences.
    let against = replay_json(data, &["--plugin", &new, "--against", &old]);
    assert_eq!(against["changed"], other["changed"]);
    let none = replay_json(data, &["--plugin", &new, "--against", &new]);
    assert_eq!(none["changed"], json!([]));

    // Parts of the recording.
    assert_eq!(replay_json(data, &["--limit", "2"])["turns"], 2);
    let elsewhere = replay_json(data, &["--session", "nobody"]);
    assert_eq!(elsewhere["turns"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_applies_settings_and_faults_are_not_zero_rewards() {
    let (running, turns) = recorded().await;
    let files = TempDir::new().unwrap();
    let path = files.path().join("starved.toml");
    std::fs::write(
        &path,
        "[plugins.config.judge-next-state.limits]\nfuel = 10\n",
    )
    .unwrap();
    let path = path.display().to_string();
    let starved = replay_json(running.data.path(), &["--config", &path]);
    let faults = starved["faults"].as_array().unwrap();
    assert_eq!(faults.len(), turns.len(), "{starved}");
    assert_eq!(faults[0]["reason"], "cpu", "{starved}");
    assert_eq!(starved["agreement"]["both"], 0);
    for change in starved["changed"].as_array().unwrap() {
        assert_eq!(change["new"]["reward"], Value::Null);
    }
    let queue = starved["next"]["samples"].as_array().unwrap();
    let left = queue.iter().filter(|s| s["new"]["reward"] != Value::Null);
    assert_eq!(left.count(), 1, "only the user feedback is left: {starved}");
}
