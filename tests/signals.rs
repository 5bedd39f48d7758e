//! A signal stops the server gracefully; a second one stops it at once.

use clawhost_journal::{Journal, TurnId, TurnState};
use clawhost_tests::{Client, Command, Script, WAIT_TIMEOUT, user};
use serde_json::json;
use tempfile::TempDir;

/// A grace period longer than the test's timeout.
const CONFIGURATION: &str =
    "[server]\nport = 0\nshutdown_timeout = \"3600s\"\n[training]\nenabled = false\n";

#[tokio::test]
async fn second_signal_stops_at_once() {
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
    let mut process = Command::new(&arguments)
        .in_directory(dir.path())
        .serve()
        .unwrap();
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
    tokio::time::timeout(WAIT_TIMEOUT, closed).await.unwrap();
    assert!(!process.has_exited(), "a reply is still being generated");
    stream.next().await.unwrap();

    let code = process.stop().await;
    assert_eq!(
        code, None,
        "ended by the signal, not by finishing the reply"
    );
    // The partial reply is recorded, and the next start closes the turn.
    let journal = Journal::open(&dir.path().join("data")).unwrap();
    assert_eq!(journal.abort_interrupted_turns().unwrap(), 1);
    let turn = journal.turn(TurnId(1)).unwrap().unwrap();
    assert_eq!(turn.state, TurnState::Aborted);
}
