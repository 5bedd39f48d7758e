//! Readiness covers chat requests; health covers all components and shows file paths to operators only.

use std::sync::atomic::Ordering;

use clawhost_engine::EngineOptions;
use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::Journal;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Connection, Server, TIMEOUT, head};

const FAULT: &str = "cannot use /srv/my data/adapters: Permission denied (os error 13)";

/// Makes every write fail, like a full disk.
const FULL: &str = "
    CREATE TRIGGER full_meta BEFORE INSERT ON meta BEGIN SELECT RAISE(ABORT, 'the disk is full'); END;
    CREATE TRIGGER full_turns BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'the disk is full'); END;";

/// Polls until the status matches: the result of the write check is cached for a second.
async fn until_status(server: &Server, path: &str, status: u16) -> ApiResponse {
    let began = std::time::Instant::now();
    loop {
        let answer = server.get(path).await;
        if answer.status == status {
            return answer;
        }
        assert!(began.elapsed() < TIMEOUT, "{path} stays {}", answer.status);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn unwritable_journal_makes_the_server_unready() {
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
        assert_eq!(answer.json()["reason"], "the journal is not writable");
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
async fn training_error_is_unhealthy_but_ready() {
    let server = Server::start().await;
    *server.loops.training_error.lock().unwrap() = Some(FAULT.into());
    let answer = server.get("/healthz").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["status"], "unhealthy");
    assert_eq!(answer.json()["reason"], "training steps cannot be recorded");
    assert_eq!(server.get("/readyz").await.ok()["status"], "ready");
    assert_eq!(server.get("/health").await.status, 200);
    server.chat("A").await.ok();
}

#[tokio::test]
async fn locations_are_shown_to_operators_only() {
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
        *server.loops.training_error.lock().unwrap() = Some(FAULT.into());
        let mut request = server.request(Method::GET, "/healthz");
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        let answer = ApiResponse::read(request.send().await.unwrap()).await;
        assert_eq!(answer.status, 503);
        let body = answer.json();
        let text = body["training"]["last_error"].as_str().unwrap().to_owned();
        shown.push(answer.text.contains("/srv").then_some(text));
        assert!(
            body["reason"]
                .as_str()
                .unwrap()
                .starts_with("training steps"),
            "{body}"
        );
    }
    assert_eq!(shown, [None, None, None, None, Some(FAULT.to_owned())]);
}

#[tokio::test]
async fn health_and_version_have_vllm_format() {
    let server = Server::with(|options| {
        options.keys = vec![ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap()];
        options.server.max_concurrent_requests = 1;
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

#[tokio::test]
async fn panic_fails_one_request_and_the_server_goes_on() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let health = head("GET", "/healthz");
    server.loops.panics.store(true, Ordering::Relaxed);
    let (status, answer) = connection.send(&health, b"").await;
    assert_eq!(status, 500, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["error"]["code"], "internal_error");
    server.chat("A").await.ok();
    server.loops.panics.store(false, Ordering::Relaxed);
    let (status, answer) = connection.send(&health, b"").await;
    assert_eq!(status, 200, "on the same connection: {answer}");
}
