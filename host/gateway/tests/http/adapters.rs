//! The operator decides which version is served, and the next request has it.

use clawhost_gateway::{ApiKey, GatewayOptions, Scope};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::chain::Chain;
use crate::server::{Answer, Server};

const PROMOTE: &str = "/v1/adapters/promote";
const ROLLBACK: &str = "/v1/adapters/rollback";
const PIN: &str = "/v1/adapters/pin";

/// A server that has published so many versions.
async fn learned(count: u64) -> Server {
    let server = Server::start().await;
    (1..=count).for_each(|version| chain(&server).publish(version));
    server
}

fn chain(server: &Server) -> &Chain {
    server.loops.chain.get().unwrap()
}

async fn rollback(server: &Server) -> Answer {
    Answer::of(server.request(Method::POST, ROLLBACK).send().await.unwrap()).await
}

async fn unpin(server: &Server) -> Answer {
    Answer::of(server.request(Method::DELETE, PIN).send().await.unwrap()).await
}

/// The version that the next request is served by, as header and record say.
async fn served(server: &Server) -> u64 {
    let answer = server.chat("A").await;
    answer.ok();
    let (version, digest) = answer.header("x-clawhost-adapter").split_once(':').unwrap();
    let recorded = server.turn(answer.turn());
    assert_eq!(recorded.adapter_version.to_string(), version);
    assert!(recorded.adapter_digest.starts_with(digest));
    recorded.adapter_version
}

/// What the answer says is served, pinned, and returned to.
fn told(answer: &Answer) -> (Value, Value, Value) {
    let body = answer.ok();
    assert_eq!(body["object"], "release");
    (
        body["active"]["version"].clone(),
        body["pinned"].clone(),
        body["rollback_to"].clone(),
    )
}

#[tokio::test]
async fn a_promoted_version_serves_the_next_request_and_none_that_is_under_way() {
    let server = learned(2).await;
    assert_eq!(served(&server).await, 2);
    let under_way = server.stream("L", json!({"max_tokens": 100_000})).await;
    assert!(
        under_way.headers()["x-clawhost-adapter"]
            .to_str()
            .unwrap()
            .starts_with("2:")
    );
    let turn = under_way.headers()["x-clawhost-turn"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let mut events = under_way.bytes_stream();
    events.next().await.unwrap().unwrap();

    let answer = server.post(PROMOTE, &json!({"version": 1})).await;
    assert_eq!(told(&answer), (json!(1), json!(false), json!(2)));
    assert_eq!(served(&server).await, 1);
    // It goes on, on the version that it began with.
    for _ in 0..5 {
        events.next().await.unwrap().unwrap();
    }
    drop(events);
    let ended = server.ended(turn).await;
    assert_eq!(ended.adapter_version, 2);
    let base = server.post(PROMOTE, &json!({"version": 0})).await;
    assert_eq!(told(&base), (json!(0), json!(false), json!(1)));
    assert_eq!(
        base.ok()["active"]["digest"],
        server.engine.model().digest()
    );
    assert_eq!(served(&server).await, 0);
}

#[tokio::test]
async fn a_rollback_returns_to_what_was_served_before() {
    let server = learned(2).await;
    server.post(PROMOTE, &json!({"version": 1})).await.ok();
    // The promotion, and then the steps.
    for expected in [2, 1, 0] {
        assert_eq!(told(&rollback(&server).await).0, expected);
        assert_eq!(served(&server).await, expected);
    }
    assert_eq!(rollback(&server).await.error(409), "nothing_to_roll_back");
    assert_eq!(served(&server).await, 0);
}

#[tokio::test]
async fn a_pinned_version_stays_while_a_step_publishes() {
    let server = learned(1).await;
    let answer = server.post(PIN, &json!({})).await;
    assert_eq!(told(&answer), (json!(1), json!(true), json!(0)));
    chain(&server).publish(2);
    assert_eq!(served(&server).await, 1);
    let list = server.get("/v1/adapters").await.ok();
    let states: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["active", "candidate"]);
    assert_eq!(
        (&list["pinned"], &list["training_from"]),
        (&json!(true), &json!(2))
    );
    for refused in [
        server.post(PROMOTE, &json!({"version": 2})).await,
        rollback(&server).await,
    ] {
        assert_eq!(refused.error(409), "version_pinned");
        assert!(refused.text.contains("DELETE /v1/adapters/pin"));
    }
    assert_eq!(served(&server).await, 1);
    // What was made meanwhile can be looked at by pinning it.
    let moved = server.post(PIN, &json!({"version": 2})).await;
    assert_eq!(told(&moved).0, 2);
    assert_eq!(served(&server).await, 2);

    assert_eq!(
        told(&unpin(&server).await),
        (json!(2), json!(false), json!(1))
    );
    assert_eq!(served(&server).await, 2);
    chain(&server).publish(3);
    assert_eq!(served(&server).await, 3);
    assert_eq!(
        told(&unpin(&server).await).0,
        3,
        "there is nothing to let go"
    );
}

#[tokio::test]
async fn every_change_is_recorded_with_whose_it_was() {
    let server = Server::with(keyed).await;
    chain(&server).publish(1);
    chain(&server).publish(2);
    for (method, path) in [(Method::POST, ROLLBACK), (Method::DELETE, PIN)] {
        ask(&server, "key-of-ops", method, path).await.ok();
    }
    let list = ask(&server, "key-of-ops", Method::GET, "/v1/adapters").await;
    let rows: Vec<(Value, Value, Value)> = list.ok()["releases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["act"].clone(),
                row["version"].clone(),
                row["by"].clone(),
            )
        })
        .collect();
    let row = |act: &str, version: u64, by: Option<&str>| (json!(act), json!(version), json!(by));
    assert_eq!(
        rows,
        [
            row("rollback", 1, Some("ops")),
            row("step", 2, None),
            row("step", 1, None)
        ]
    );
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_what_would_mend_it() {
    let server = learned(2).await;
    for path in [PROMOTE, PIN] {
        let unknown = server.post(path, &json!({"version": 9})).await;
        assert_eq!(unknown.error(404), "unknown_adapter");
        assert!(unknown.text.contains("GET /v1/adapters"));
        for bad in [
            json!([]),
            json!({"version": "1"}),
            json!({"version": -1}),
            json!({"version": 1.5}),
        ] {
            server.post(path, &bad).await.error(400);
        }
        let empty = server.request(Method::POST, path).send().await.unwrap();
        Answer::of(empty).await.error(415);
    }
    let missing = server.post(PROMOTE, &json!({})).await;
    assert_eq!(missing.error(400), "missing_required_parameter");
    chain(&server).let_go(1);
    for refused in [
        server.post(PROMOTE, &json!({"version": 1})).await,
        server.post(PIN, &json!({"version": 1})).await,
        rollback(&server).await,
    ] {
        assert_eq!(refused.error(409), "adapter_not_servable");
        assert!(refused.text.contains("was let go"));
    }
    assert_eq!(served(&server).await, 2);
    // What is served already can be promoted again; nothing is recorded of it.
    let same = server.post(PROMOTE, &json!({"version": 2})).await;
    assert_eq!(told(&same).0, 2);
    assert_eq!(server.journal.releases(9).unwrap().len(), 2);
}

fn keyed(options: &mut GatewayOptions) {
    options.keys = vec![
        ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
        ApiKey::new("bob", "key-of-bob", [Scope::Chat, Scope::Feedback]).unwrap(),
        ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
    ];
}

async fn ask(server: &Server, key: &str, method: Method, path: &str) -> Answer {
    let request = server.request(method, path).bearer_auth(key);
    let body = json!({"version": 1});
    Answer::of(request.json(&body).send().await.unwrap()).await
}

#[tokio::test]
async fn only_an_operator_changes_what_is_served() {
    let server = Server::with(keyed).await;
    chain(&server).publish(1);
    chain(&server).publish(2);
    let ways = [
        (Method::POST, PROMOTE),
        (Method::POST, ROLLBACK),
        (Method::POST, PIN),
        (Method::DELETE, PIN),
    ];
    for (method, path) in ways {
        for key in ["key-of-ann", "key-of-bob"] {
            let refused = ask(&server, key, method.clone(), path).await;
            assert_eq!(refused.error(403), "missing_scope", "{key} {method} {path}");
        }
        ask(&server, "nobody", method, path).await.error(401);
    }
    assert_eq!(server.engine.active().version, 2);
    ask(&server, "key-of-ops", Method::POST, PROMOTE).await.ok();
    assert_eq!(server.engine.active().version, 1);
}
