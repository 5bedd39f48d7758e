//! Clients that send a request and never read: they keep nobody out, and their connection ends.

use std::time::Duration;

use clawhost_gateway::GatewayOptions;
use clawhost_journal::{Finish, Journal, TurnState};
use clawhost_policy::EngineOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::{Server, chat_body, head, until};

const SLOTS: usize = 8;

/// A connection over which a request was sent, and nothing is read.
async fn ask(server: &Server, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = body.to_string();
    let request = format!(
        "{}\r\nContent-Length: {}\r\n\r\n{body}",
        head("POST", path),
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn with(set: impl FnOnce(&mut GatewayOptions)) -> Server {
    let engine = EngineOptions {
        max_batch: SLOTS,
        ..EngineOptions::default()
    };
    Server::on(Journal::in_memory().unwrap(), engine, |options| {
        options.max_concurrent = SLOTS;
        set(options);
    })
    .await
}

/// With all that can be shown of a token, some thousand tokens are more than the buffers of a connection hold.
fn long(max_tokens: u32) -> Value {
    json!({
        "stream": true, "max_tokens": max_tokens, "session_id": "stalled", "logprobs": true, "top_logprobs": 20,
    })
}

#[tokio::test]
async fn replies_that_are_generated_and_not_read_occupy_no_slot() {
    let server = with(|_| {}).await;
    let mut stalled = Vec::new();
    for index in 0..SLOTS {
        let chat = chat_body("L", long(4000));
        let text = json!({"prompt": "L", "stream": true, "max_tokens": 8000, "logprobs": 5, "temperature": 0});
        let (path, body) = match index % 2 {
            0 => ("/v1/chat/completions", chat),
            _ => ("/v1/completions", text),
        };
        stalled.push(ask(&server, path, &body).await);
    }
    until("all are generated", || {
        (server.engine.stats().finished == SLOTS as u64).then_some(())
    })
    .await;
    // The engine counts a reply as finished a moment before it lets go of it.
    let answer = loop {
        let answer = server.chat("A").await;
        if answer.status != 429 {
            break answer;
        }
        assert_eq!(server.engine.stats().running, 0);
        tokio::task::yield_now().await;
    };
    answer.ok();
    // Nothing is lost for those who read after all.
    for turn in server.turns("stalled") {
        assert_eq!(turn.state, TurnState::Generating, "nobody has read it");
    }
    let mut text = Vec::new();
    let mut first = stalled.swap_remove(0);
    while !text.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n") {
        let mut chunk = vec![0; 64 << 10];
        let read = first.read(&mut chunk).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        text.extend_from_slice(&chunk[..read]);
    }
    let complete = || {
        let turns = server.turns("stalled");
        let complete = turns
            .iter()
            .filter(|turn| turn.state == TurnState::Complete);
        (complete.count() == 1).then_some(())
    };
    until("the turn is complete", complete).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_gone_after_the_write_timeout() {
    let server = with(|options| options.write_timeout = Duration::from_millis(50)).await;
    let mut stalled = Vec::new();
    for max_tokens in [4000, 60_000] {
        let body = chat_body("L", long(max_tokens));
        stalled.push(ask(&server, "/v1/chat/completions", &body).await);
    }
    until("both turns are recorded", || {
        (server.turns("stalled").len() == 2).then_some(())
    })
    .await;
    for turn in server.turns("stalled") {
        let turn = server.ended(turn.id.0).await;
        assert_eq!(turn.state, TurnState::Aborted);
        assert_eq!(turn.reason.as_deref(), Some("client stopped reading"));
        let partial = turn.completion.unwrap();
        assert_eq!(partial.finish, Finish::Aborted);
        assert!(!partial.token_ids.is_empty());
    }
    until("the engine is idle", || {
        (server.engine.stats().running == 0).then_some(())
    })
    .await;
    server.chat("A").await.ok();
}
