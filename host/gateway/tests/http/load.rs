//! Requests over the concurrency limit are rejected at once with `Retry-After`.

use clawhost_engine::EngineOptions;
use clawhost_journal::Journal;
use serde_json::json;

use crate::server::{Server, until};

#[tokio::test]
async fn concurrency_limit_includes_streams() {
    let server = Server::with(|options| options.server.max_concurrent_requests = 1).await;
    let stream = server.stream("L", json!({"max_tokens": 60_000})).await;
    let answer = server.chat("A").await;
    assert_eq!(answer.error(429), "overloaded");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(server.get("/healthz").await.status, 200);
    assert!(
        server
            .get("/metrics")
            .await
            .text
            .contains("clawhost_http_requests_in_progress 1")
    );
    drop(stream);
    until("the stream is over", || {
        (server.engine.stats().cancelled == 1).then_some(())
    })
    .await;
    loop {
        let answer = server.chat("A").await;
        if answer.status == 200 {
            break;
        }
        answer.error(429);
    }
}

#[tokio::test]
async fn request_rejected_by_a_full_engine_leaves_no_turn() {
    let engine = EngineOptions {
        max_num_seqs: 1,
        max_waiting_requests: 1,
        ..EngineOptions::default()
    };
    let server = Server::on(Journal::in_memory().unwrap(), engine, |_| {}).await;
    let running = server.stream("L", json!({"max_tokens": 60_000})).await;
    until("it runs", || {
        (server.engine.stats().running == 1).then_some(())
    })
    .await;
    let waiting = server.stream("L", json!({"max_tokens": 60_000})).await;
    let before = server.journal.counts().unwrap().turns;
    assert_eq!(server.chat("A").await.error(429), "overloaded");
    assert_eq!(server.journal.counts().unwrap().turns, before);
    drop((running, waiting));
}
