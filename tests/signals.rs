//! A signal stops a server, which lets replies finish; a second one ends it at once.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

use clawhost_journal::{Journal, TurnId, TurnState};
use clawhost_tests::{Client, Command, PATIENCE, Script, user};
use serde_json::json;
use tempfile::TempDir;

/// Longer than the test is patient.
const CONFIGURATION: &str =
    "[server]\nport = 0\nshutdown_seconds = 3600.0\n[training]\nenabled = false\n";

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    Script::save(&[Script::endless('L', "la ")], &model);
    std::fs::write(dir.path().join("clawhost.toml"), CONFIGURATION).unwrap();
    let arguments = [
        "run",
        "--config",
        "clawhost.toml",
        "--model",
        "model",
        "--data",
        "data",
    ];
    let mut process = Command::new(&arguments).within(dir.path()).serve().unwrap();
    let client = Client::new(&process.url);
    let mut stream = client
        .chat(&[user("L")])
        .with(json!({"max_tokens": 100_000}))
        .stream()
        .await;
    stream.next().await.unwrap();

    process.terminate();
    let address = process.url.trim_start_matches("http://").to_owned();
    let closed = async {
        while tokio::net::TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.unwrap();
    assert!(!process.is_gone(), "a reply is still being written");
    stream.next().await.unwrap();

    let code = process.stop().await;
    assert_eq!(
        code, None,
        "ended by the signal, not by finishing the reply"
    );
    // What had arrived is recorded, and the next start closes it.
    let journal = Journal::open(&dir.path().join("data")).unwrap();
    assert_eq!(journal.recover().unwrap(), 1);
    let turn = journal.turn(TurnId(1)).unwrap().unwrap();
    assert_eq!(turn.state, TurnState::Aborted);
}
