//! An adapter for each API key or each user of a key.

use clawhost_config::AdapterScope;
use clawhost_gateway::{ApiKey, GatewayOptions, Scope};
use clawhost_journal::AdapterOwner;
use reqwest::Method;
use serde_json::{Value, json};

use crate::releases::ReleaseChain;
use crate::server::{ApiResponse, Server, chat_body};

const CHAT: &str = "/v1/chat/completions";

fn keyed(adapters: AdapterScope) -> impl FnOnce(&mut GatewayOptions) {
    move |options| {
        options.adapters = adapters;
        options.keys = vec![
            ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
            ApiKey::new("bob", "key-of-bob", [Scope::Chat]).unwrap(),
            ApiKey::new("eve", "key-of-eve", [Scope::Chat])
                .unwrap()
                .with_adapter(2),
            ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
        ];
    }
}

fn releases(server: &Server) -> &ReleaseChain {
    server.loops.releases.get().unwrap()
}

async fn send(server: &Server, key: &str, method: Method, path: &str, body: Value) -> ApiResponse {
    let request = server.request(method, path).bearer_auth(key).json(&body);
    ApiResponse::read(request.send().await.unwrap()).await
}

async fn chat(server: &Server, key: &str, extra: Value) -> ApiResponse {
    send(server, key, Method::POST, CHAT, chat_body("A", extra)).await
}

/// The version and the owner that the journal records for a request, and the version in the response.
async fn served(server: &Server, key: &str, extra: Value) -> (u64, Option<String>) {
    let answer = chat(server, key, extra).await;
    answer.ok();
    let turn = server.turn(answer.turn());
    let label = answer.header("x-clawhost-adapter");
    assert_eq!(
        label.split(':').next(),
        Some(turn.adapter_version.to_string().as_str())
    );
    (turn.adapter_version, turn.owner.map(String::from))
}

#[tokio::test]
async fn no_key_is_served_the_adapter_of_another() {
    let server = Server::with(keyed(AdapterScope::Key)).await;
    let (ann, bob) = (AdapterOwner::of_key("ann"), AdapterOwner::of_key("bob"));
    let owned = |owner: &AdapterOwner| Some(owner.to_string());
    releases(&server).publish(1);
    assert_eq!(
        served(&server, "key-of-ann", json!({})).await,
        (0, owned(&ann))
    );
    releases(&server).publish_of(Some(&ann), 2, json!({}));
    releases(&server).publish_of(Some(&bob), 3, json!({}));
    releases(&server).publish_of(Some(&ann), 4, json!({}));
    for _ in 0..2 {
        assert_eq!(
            served(&server, "key-of-ann", json!({})).await,
            (4, owned(&ann))
        );
        assert_eq!(
            served(&server, "key-of-bob", json!({})).await,
            (3, owned(&bob))
        );
    }
    // The name of a user is no way to the adapter of a key.
    for user in ["ann", "key:ann", "/ann"] {
        assert_eq!(
            served(&server, "key-of-bob", json!({"user": user})).await.0,
            3
        );
    }
    for model in ["tiny:4", "tiny:2"] {
        let answer = chat(&server, "key-of-bob", json!({"model": model})).await;
        assert_eq!(answer.error(404), "model_not_found");
        let body = json!({"model": model, "prompt": "A"});
        let answer = send(&server, "key-of-bob", Method::POST, "/v1/completions", body).await;
        assert_eq!(answer.error(404), "model_not_found");
    }
    assert_eq!(
        served(&server, "key-of-ann", json!({"model": "tiny:4"}))
            .await
            .0,
        4
    );
    assert_eq!(
        served(&server, "key-of-ann", json!({"model": "tiny:1"}))
            .await
            .0,
        1
    );
    assert_eq!(
        served(&server, "key-of-ann", json!({"model": "tiny:base"}))
            .await
            .0,
        0
    );
    // Not even when the configuration of the key names it.
    let answer = chat(&server, "key-of-eve", json!({})).await;
    assert_eq!(answer.error(503), "adapter_not_held");
    let models = send(&server, "key-of-bob", Method::GET, "/v1/models", json!({}))
        .await
        .ok();
    let versions: Vec<&Value> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["adapter"]["version"])
        .collect();
    assert_eq!(versions, [&json!(1), &json!(0), &json!(1)]);
    let body = json!({"model": "tiny", "prompt": "A"});
    let answer = send(&server, "key-of-bob", Method::POST, "/v1/completions", body).await;
    assert!(answer.header("x-clawhost-adapter").starts_with("3:"));
    // A step trains one owner, so whether one is due depends on the longest queue.
    let health = server.get("/healthz").await.ok();
    assert_eq!(health["training"]["longest_queue"], 0);
}

#[tokio::test]
async fn users_of_a_key_have_their_own_adapters() {
    let server = Server::with(keyed(AdapterScope::User)).await;
    let (ann, bob) = (
        AdapterOwner::of_user(Some("ann"), "x"),
        AdapterOwner::of_user(Some("bob"), "x"),
    );
    releases(&server).publish_of(Some(&ann), 1, json!({}));
    releases(&server).publish_of(Some(&AdapterOwner::of_key("ann")), 2, json!({}));
    let own = |text: &str| Some(text.to_owned());
    assert_eq!(
        served(&server, "key-of-ann", json!({"user": "x"})).await,
        (1, own("user:ann/x"))
    );
    assert_eq!(
        served(&server, "key-of-bob", json!({"user": "x"})).await,
        (0, Some(bob.to_string()))
    );
    assert_eq!(
        served(&server, "key-of-ann", json!({"user": "y"})).await,
        (0, own("user:ann/y"))
    );
    assert_eq!(
        served(&server, "key-of-ann", json!({"user": " "})).await,
        (2, own("key:ann"))
    );
    let long = chat(&server, "key-of-ann", json!({"user": "x".repeat(257)})).await;
    assert_eq!(long.error(400), "invalid_value");
}

#[tokio::test]
async fn an_operator_names_the_owner_whose_version_changes() {
    let server = Server::with(keyed(AdapterScope::Key)).await;
    let ann = AdapterOwner::of_key("ann");
    releases(&server).publish_of(Some(&ann), 1, json!({}));
    releases(&server).publish_of(Some(&ann), 2, json!({}));
    releases(&server).publish(3);
    let ops = |method, path: &'static str, body| send(&server, "key-of-ops", method, path, body);
    let rollback = "/v1/adapters/rollback";
    let missing = ops(Method::POST, rollback, json!({})).await;
    assert_eq!(missing.error(400), "owner_required");
    assert!(
        missing.text.contains("?owner=key:alice"),
        "{}",
        missing.text
    );
    let unclear = ops(Method::POST, "/v1/adapters/rollback?owner=ann", json!({})).await;
    assert_eq!(unclear.error(400), "invalid_value");
    let state = ops(
        Method::POST,
        "/v1/adapters/rollback?owner=key:ann",
        json!({}),
    )
    .await
    .ok();
    assert_eq!(
        (&state["active"]["version"], &state["rollback_to"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(served(&server, "key-of-ann", json!({})).await.0, 1);
    assert_eq!(server.engine.active().version, 3);
    let other = ops(
        Method::POST,
        "/v1/adapters/promote?owner=shared",
        json!({"version": 2}),
    )
    .await;
    assert_eq!(other.error(409), "version_of_another_owner");
    let list = ops(Method::GET, "/v1/adapters?owner=key:ann", json!({}))
        .await
        .ok();
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert_eq!(list["data"][0]["owner"], "key:ann");
    let list = ops(Method::GET, "/v1/adapters", json!({})).await.ok();
    assert_eq!(list["data"].as_array().unwrap().len(), 3);
    assert_eq!(list["active"]["version"], 3);
}
