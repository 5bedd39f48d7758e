//! Adapter releases: promote, roll back, pin.

use clawhost_gateway::{ApiKey, GatewayOptions, Scope};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::releases::ReleaseChain;
use crate::server::{ApiResponse, Server};

const PROMOTE: &str = "/v1/adapters/promote";
const ROLLBACK: &str = "/v1/adapters/rollback";
const PIN: &str = "/v1/adapters/pin";

/// A server with `count` published versions.
async fn server_with_versions(count: u64) -> Server {
    let server = Server::start().await;
    (1..=count).for_each(|version| releases(&server).publish(version));
    server
}

fn releases(server: &Server) -> &ReleaseChain {
    server.loops.releases.get().unwrap()
}

async fn rollback(server: &Server) -> ApiResponse {
    ApiResponse::read(server.request(Method::POST, ROLLBACK).send().await.unwrap()).await
}

async fn unpin(server: &Server) -> ApiResponse {
    ApiResponse::read(server.request(Method::DELETE, PIN).send().await.unwrap()).await
}

/// The version that serves the next request, from the header and the recorded turn.
async fn served(server: &Server) -> u64 {
    let answer = server.chat("A").await;
    answer.ok();
    let (version, digest) = answer.header("x-clawhost-adapter").split_once(':').unwrap();
    let recorded = server.turn(answer.turn());
    assert_eq!(recorded.adapter_version.to_string(), version);
    assert!(recorded.adapter_digest.starts_with(digest));
    recorded.adapter_version
}

/// The active version, the pin and the rollback version of a release response.
fn release_state(answer: &ApiResponse) -> (Value, Value, Value) {
    let body = answer.ok();
    assert_eq!(body["object"], "release");
    (
        body["active"]["version"].clone(),
        body["pinned"].clone(),
        body["rollback_to"].clone(),
    )
}

#[tokio::test]
async fn promoted_version_serves_new_requests_but_not_requests_in_progress() {
    let server = server_with_versions(2).await;
    assert_eq!(served(&server).await, 2);
    let in_progress = server.stream("L", json!({"max_tokens": 100_000})).await;
    assert!(
        in_progress.headers()["x-clawhost-adapter"]
            .to_str()
            .unwrap()
            .starts_with("2:")
    );
    let turn = in_progress.headers()["x-clawhost-turn"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let mut events = in_progress.bytes_stream();
    events.next().await.unwrap().unwrap();

    let answer = server.post(PROMOTE, &json!({"version": 1})).await;
    assert_eq!(release_state(&answer), (json!(1), json!(false), json!(2)));
    assert_eq!(served(&server).await, 1);
    // The stream continues on the version that it started with.
    for _ in 0..5 {
        events.next().await.unwrap().unwrap();
    }
    drop(events);
    let ended = server.ended(turn).await;
    assert_eq!(ended.adapter_version, 2);
    let base = server.post(PROMOTE, &json!({"version": 0})).await;
    assert_eq!(release_state(&base), (json!(0), json!(false), json!(1)));
    assert_eq!(
        base.ok()["active"]["digest"],
        server.engine.model().digest()
    );
    assert_eq!(served(&server).await, 0);
}

#[tokio::test]
async fn rollback_restores_the_previous_version() {
    let server = server_with_versions(2).await;
    server.post(PROMOTE, &json!({"version": 1})).await.ok();
    // First the promotion is reverted, then the steps.
    for expected in [2, 1, 0] {
        assert_eq!(release_state(&rollback(&server).await).0, expected);
        assert_eq!(served(&server).await, expected);
    }
    assert_eq!(rollback(&server).await.error(409), "nothing_to_roll_back");
    assert_eq!(served(&server).await, 0);
}

#[tokio::test]
async fn pinned_version_stays_active_while_a_step_publishes() {
    let server = server_with_versions(1).await;
    let answer = server.post(PIN, &json!({})).await;
    assert_eq!(release_state(&answer), (json!(1), json!(true), json!(0)));
    releases(&server).publish(2);
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
    // The version published meanwhile can be activated by pinning it.
    let moved = server.post(PIN, &json!({"version": 2})).await;
    assert_eq!(release_state(&moved).0, 2);
    assert_eq!(served(&server).await, 2);

    assert_eq!(
        release_state(&unpin(&server).await),
        (json!(2), json!(false), json!(1))
    );
    assert_eq!(served(&server).await, 2);
    releases(&server).publish(3);
    assert_eq!(served(&server).await, 3);
    assert_eq!(
        release_state(&unpin(&server).await).0,
        3,
        "there is nothing to let go"
    );
}

#[tokio::test]
async fn release_changes_are_recorded_with_the_key_name() {
    let server = Server::with(keyed).await;
    releases(&server).publish(1);
    releases(&server).publish(2);
    for (method, path) in [(Method::POST, ROLLBACK), (Method::DELETE, PIN)] {
        send_request(&server, "key-of-ops", method, path).await.ok();
    }
    let list = send_request(&server, "key-of-ops", Method::GET, "/v1/adapters").await;
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
async fn invalid_release_changes_are_rejected_with_advice() {
    let server = server_with_versions(2).await;
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
        ApiResponse::read(empty).await.error(415);
    }
    let missing = server.post(PROMOTE, &json!({})).await;
    assert_eq!(missing.error(400), "missing_required_parameter");
    releases(&server).unload(1);
    for refused in [
        server.post(PROMOTE, &json!({"version": 1})).await,
        server.post(PIN, &json!({"version": 1})).await,
        rollback(&server).await,
    ] {
        assert_eq!(refused.error(409), "adapter_not_servable");
        assert!(refused.text.contains("was deleted"));
    }
    assert_eq!(served(&server).await, 2);
    // Promoting the active version has no effect and records nothing.
    let same = server.post(PROMOTE, &json!({"version": 2})).await;
    assert_eq!(release_state(&same).0, 2);
    assert_eq!(server.journal.releases(9).unwrap().len(), 2);
}

fn keyed(options: &mut GatewayOptions) {
    options.keys = vec![
        ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
        ApiKey::new("bob", "key-of-bob", [Scope::Chat, Scope::Feedback]).unwrap(),
        ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
    ];
}

async fn send_request(server: &Server, key: &str, method: Method, path: &str) -> ApiResponse {
    let request = server.request(method, path).bearer_auth(key);
    let body = json!({"version": 1});
    ApiResponse::read(request.json(&body).send().await.unwrap()).await
}

#[tokio::test]
async fn release_changes_require_the_operator_scope() {
    let server = Server::with(keyed).await;
    releases(&server).publish(1);
    releases(&server).publish(2);
    let ways = [
        (Method::POST, PROMOTE),
        (Method::POST, ROLLBACK),
        (Method::POST, PIN),
        (Method::DELETE, PIN),
    ];
    for (method, path) in ways {
        for key in ["key-of-ann", "key-of-bob"] {
            let refused = send_request(&server, key, method.clone(), path).await;
            assert_eq!(refused.error(403), "missing_scope", "{key} {method} {path}");
        }
        send_request(&server, "nobody", method, path)
            .await
            .error(401);
    }
    assert_eq!(server.engine.active().version, 2);
    send_request(&server, "key-of-ops", Method::POST, PROMOTE)
        .await
        .ok();
    assert_eq!(server.engine.active().version, 1);
}
