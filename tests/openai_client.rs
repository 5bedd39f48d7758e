//! The unmodified `openai` Python client with streaming and without special headers: its turns are matched, judged and
//! trained on, and later replies come from a newer adapter.
//!
//! Needs a Python with `tests/clients/requirements.txt` installed, set in `CLAWHOST_CLIENTS_PYTHON`; `.ci/clients`
//! creates one.

use std::ffi::OsStr;
use std::process::Command;

use clawhost_journal::TurnId;
use clawhost_tests::TestServer;
use serde_json::Value;

/// Holds a conversation with the script; its turns.
async fn converse(python: &OsStr, server: &TestServer) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/three_turns.py");
    let url = format!("{}/v1", server.server.url());
    let mut command = Command::new(python);
    command.args([script, &url]);
    for proxy in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(proxy);
    }
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.unwrap().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    let turns: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(turns.len(), 3);
    turns
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_turns_are_matched_judged_and_trained() {
    let Some(python) = std::env::var_os("CLAWHOST_CLIENTS_PYTHON") else {
        let missing = "the openai Python client is missing: set CLAWHOST_CLIENTS_PYTHON to a python that has \
                       tests/clients/requirements.txt installed";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{missing}"
        );
        println!("not run: {missing}");
        return;
    };
    let running = TestServer::start().await;
    let turns = converse(&python, &running).await;
    for turn in &turns {
        assert_eq!(turn["session"], turns[0]["session"]);
        assert!(turn["chunks"].as_u64().unwrap() > 1, "it streamed: {turn}");
    }
    let id = |index: usize| TurnId(turns[index]["turn"].as_i64().unwrap());
    running.wait_until_trained(id(0)).await;
    running.wait_until_trained(id(1)).await;
    let path = format!(
        "/v1/sessions/{}/explain",
        turns[0]["session"].as_str().unwrap()
    );
    let explained = running.client.get(&path).await;
    let explained = explained.ok()["turns"].as_array().unwrap();
    assert_eq!(explained.len(), 3);
    for (index, turn) in explained.iter().enumerate() {
        assert_eq!(turn["turn"], turns[index]["turn"]);
        assert_eq!(turn["adapter_version"], turns[index]["adapter"]);
        let decision = if index == 0 { "new" } else { "continue" };
        assert_eq!(turn["matched"]["decision"], decision, "{turn}");
    }
    for (turn, reward) in explained.iter().zip([-1.0, 1.0]) {
        assert_eq!(turn["verdicts"][0]["source"], "plugin:judge-next-state");
        assert_eq!(turn["verdicts"][0]["reward"], reward, "{turn}");
        assert_eq!(turn["trained"], true, "{turn}");
    }
    // The steps run beside the requests, at a lower priority: only once one has published can a reply come from it.
    let before = turns[0]["adapter"].as_u64().unwrap();
    running
        .until("a newer adapter is published", || {
            (running.engine().active().version > before).then_some(())
        })
        .await;
    let later = &converse(&python, &running).await[0];
    let newer = later["adapter"].as_u64().unwrap();
    assert!(newer > before);
    let later = running.turn(TurnId(later["turn"].as_i64().unwrap()));
    assert_eq!(later.adapter_version, newer);
    let rows = running.journal().adapters().unwrap();
    assert!(
        rows.iter()
            .any(|row| row.version == newer && row.digest == later.adapter_digest)
    );
}
