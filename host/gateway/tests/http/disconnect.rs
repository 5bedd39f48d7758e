//! A disconnect cancels the generation at the next token and records the partial reply.

use clawhost_journal::{Finish, TurnState};
use reqwest::Method;
use serde_json::json;

use crate::server::{Server, chat_body, until};

const UNLIMITED: i64 = 60_000;

#[tokio::test]
async fn dropping_a_stream_cancels_its_generation() {
    let server = Server::start().await;
    let request = chat_body(
        "L",
        json!({"max_tokens": UNLIMITED, "stream": true, "session_id": "gone"}),
    );
    let turn = server.disconnect("/v1/chat/completions", &request).await;
    assert_eq!(turn.state, TurnState::Aborted);
    assert_eq!(turn.reason.as_deref(), Some("client disconnected"));
    let partial = turn.completion.unwrap();
    assert_eq!(partial.finish, Finish::Aborted);
    assert!(partial.reply.text().starts_with("la la la "));
    assert!(partial.token_ids.len() < UNLIMITED as usize);
    assert_eq!(partial.token_ids.len(), partial.logprobs.len());
}

#[tokio::test]
async fn dropping_a_non_streaming_request_cancels_its_generation() {
    let server = Server::start().await;
    let body = chat_body(
        "L",
        json!({"max_tokens": UNLIMITED, "session_id": "gone", "n": 2}),
    );
    let request = server
        .request(Method::POST, "/v1/chat/completions")
        .json(&body);
    let asking = tokio::spawn(request.send());
    until("both choices run", || {
        (server.engine.stats().running == 2).then_some(())
    })
    .await;
    asking.abort();
    until("the engine cancels both", || {
        (server.engine.stats().cancelled == 2).then_some(())
    })
    .await;
    for turn in server.turns("gone") {
        assert_eq!(server.ended(turn.id.0).await.state, TurnState::Aborted);
    }
    server.chat("A").await.ok();
}
