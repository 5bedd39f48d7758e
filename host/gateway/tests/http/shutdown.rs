//! Graceful shutdown: no new connections, a grace period, and records of aborted replies.

use std::time::Duration;

use clawhost_journal::TurnState;
use serde_json::json;
use tokio::net::TcpStream;

use crate::server::{Server, TIMEOUT, until};
use crate::streaming::{Streamed, read};

#[tokio::test]
async fn replies_in_progress_finish_after_the_stop_signal() {
    let server = Server::with(|options| options.server.shutdown_timeout = TIMEOUT).await;
    let response = server.stream("L", json!({"max_tokens": 3000})).await;
    server.stop.send(true).unwrap();
    let streamed = Streamed::of(&read(response).await);
    assert_eq!(streamed.finish.as_deref(), Some("length"));
    assert_eq!(streamed.content.matches("la ").count(), 3000);
    let Server {
        running, address, ..
    } = server;
    running.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn replies_over_the_grace_period_are_aborted_and_recorded() {
    let server = Server::with(|options| options.server.shutdown_timeout = Duration::ZERO).await;
    let response = server
        .stream("L", json!({"max_tokens": 60_000, "session_id": "cut"}))
        .await;
    until("it runs", || {
        (server.engine.stats().running == 1).then_some(())
    })
    .await;
    server.stop.send(true).unwrap();
    assert!(response.text().await.is_err());
    let turn = server.ended(server.turns("cut")[0].id.0).await;
    assert_eq!(turn.state, TurnState::Aborted);
    assert_eq!(turn.reason.as_deref(), Some("server stopped"));
    server.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn dropping_the_stop_sender_stops_the_server() {
    let server = Server::start().await;
    let Server { stop, running, .. } = server;
    drop(stop);
    running.await.unwrap().unwrap();
}
