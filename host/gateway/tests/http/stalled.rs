//! Clients that never read their response: they occupy no slot, and their connection is closed.

use std::time::Duration;

use clawhost_engine::EngineOptions;
use clawhost_gateway::GatewayOptions;
use clawhost_journal::{Finish, Journal, TurnState};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::server::{Server, TIMEOUT, chat_body, head, until};

const SLOTS: usize = 8;

/// A connection that has sent a request and reads nothing.
async fn send_request(server: &Server, path: &str, body: &Value) -> TcpStream {
    // The buffer does not grow, so the machine's limit for growing buffers does not matter.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(256 << 10).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
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
        max_num_seqs: SLOTS,
        ..EngineOptions::default()
    };
    Server::on(Journal::in_memory().unwrap(), engine, |options| {
        options.server.max_concurrent_requests = SLOTS;
        set(options);
    })
    .await
}

/// With logprobs and ids, a few thousand tokens exceed the buffers of a connection.
fn long(max_tokens: u32) -> Value {
    json!({
        "stream": true, "max_tokens": max_tokens, "session_id": "stalled", "logprobs": true, "top_logprobs": 20,
    })
}

#[tokio::test]
async fn unread_finished_replies_occupy_no_slot() {
    // Nobody reads until all replies are generated, however long that takes.
    let server = with(|options| options.server.write_timeout = 10 * TIMEOUT).await;
    let mut stalled = Vec::new();
    for index in 0..SLOTS {
        let chat = chat_body("L", long(4000));
        let text = json!({"prompt": "L", "stream": true, "max_tokens": 8000, "logprobs": 5, "temperature": 0});
        let (path, body) = match index % 2 {
            0 => ("/v1/chat/completions", chat),
            _ => ("/v1/completions", text),
        };
        stalled.push(send_request(&server, path, &body).await);
    }
    until("all are generated", || {
        (server.engine.stats().finished == SLOTS as u64).then_some(())
    })
    .await;
    // The engine counts a reply as finished shortly before it releases it.
    let answer = loop {
        let answer = server.chat("A").await;
        if answer.status != 429 {
            break answer;
        }
        assert_eq!(server.engine.stats().running, 0);
        tokio::task::yield_now().await;
    };
    answer.ok();
    // A client that reads later still gets the whole reply.
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
async fn client_that_does_not_read_is_closed_after_the_write_timeout() {
    let server = with(|options| options.server.write_timeout = Duration::from_millis(50)).await;
    let mut stalled = Vec::new();
    for max_tokens in [4000, 60_000] {
        let body = chat_body("L", long(max_tokens));
        stalled.push(send_request(&server, "/v1/chat/completions", &body).await);
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
