//! Readiness says whether chat works; health says what else does not, and shows places to the operator only.

use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::Journal;
use clawhost_policy::EngineOptions;
use reqwest::Method;
use serde_json::json;

use crate::server::{Answer, PATIENCE, Server};

const FAULT: &str = "cannot use /srv/my data/adapters: Permission denied (os error 13)";

/// Refuses every row that is written, as a full disk does.
const FULL: &str = "
    CREATE TRIGGER full_meta BEFORE INSERT ON meta BEGIN SELECT RAISE(ABORT, 'the disk is full'); END;
    CREATE TRIGGER full_turns BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'the disk is full'); END;";

/// Asks until the status is this one: what was found out by writing is believed for a second.
async fn until_status(server: &Server, path: &str, status: u16) -> Answer {
    let began = std::time::Instant::now();
    loop {
        let answer = server.get(path).await;
        if answer.status == status {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "{path} stays {}", answer.status);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::on(journal, EngineOptions::default(), |_| {}).await;
    for path in ["/readyz", "/health", "/healthz"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let intruder = rusqlite::Connection::open(folder.path().join("journal.sqlite")).unwrap();
    intruder.execute_batch(FULL).unwrap();
    for path in ["/readyz", "/health", "/healthz"] {
        let answer = until_status(&server, path, 503).await;
        assert_eq!(answer.json()["reason"], "the journal cannot be written");
        assert!(!answer.text.contains(folder.path().to_str().unwrap()));
    }
    assert_eq!(server.chat("A").await.error(503), "journal_unavailable");
    intruder
        .execute_batch("DROP TRIGGER full_meta; DROP TRIGGER full_turns")
        .unwrap();
    for path in ["/readyz", "/health", "/healthz"] {
        until_status(&server, path, 200).await;
    }
    server.chat("A").await.ok();
}

#[tokio::test]
async fn a_fault_of_training_is_unhealthy_and_ready() {
    let server = Server::start().await;
    *server.loops.trouble.lock().unwrap() = Some(FAULT.into());
    let answer = server.get("/healthz").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["status"], "unhealthy");
    assert_eq!(answer.json()["reason"], "no training step can be recorded");
    assert_eq!(server.get("/readyz").await.ok()["status"], "ready");
    assert_eq!(server.get("/health").await.status, 200);
    server.chat("A").await.ok();
}

#[tokio::test]
async fn places_are_shown_with_the_key_of_an_operator_only() {
    let server = Server::with(|options| {
        options.keys = vec![
            ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
            ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
        ];
    })
    .await;
    let open = Server::start().await;
    let mut shown = Vec::new();
    for (server, key) in [
        (&open, ""),
        (&server, ""),
        (&server, "wrong"),
        (&server, "key-of-ann"),
        (&server, "key-of-ops"),
    ] {
        *server.loops.trouble.lock().unwrap() = Some(FAULT.into());
        let mut request = server.request(Method::GET, "/healthz");
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        let answer = Answer::of(request.send().await.unwrap()).await;
        assert_eq!(answer.status, 503);
        let body = answer.json();
        let text = body["training"]["last_error"].as_str().unwrap().to_owned();
        shown.push(answer.text.contains("/srv").then_some(text));
        assert!(
            body["reason"]
                .as_str()
                .unwrap()
                .starts_with("no training step"),
            "{body}"
        );
    }
    assert_eq!(shown, [None, None, None, None, Some(FAULT.to_owned())]);
}

#[tokio::test]
async fn health_and_version_are_as_vllm_has_them() {
    let server = Server::with(|options| {
        options.keys = vec![ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap()];
        options.max_concurrent = 1;
    })
    .await;
    let answer = server.get("/health").await;
    assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    let version = server.get("/version").await.ok();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    let request = server
        .request(Method::POST, "/v1/chat/completions")
        .bearer_auth("key-of-ann");
    let busy = request
        .json(&crate::server::chat_body(
            "L",
            json!({"stream": true, "max_tokens": 60_000}),
        ))
        .send()
        .await
        .unwrap();
    assert_eq!(busy.status(), 200);
    assert_eq!(server.get("/health").await.status, 200);
    drop(busy);
}
