//! Keys, scopes, rates, and what protects a server without keys from web pages.

use clawhost_gateway::{ApiKey, GatewayOptions, RateLimit, Scope};
use reqwest::Method;
use serde_json::json;

use crate::server::{Answer, Server, chat_body};

fn keyed(options: &mut GatewayOptions) {
    options.keys = vec![
        ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
        ApiKey::new("bob", "key-of-bob", [Scope::Chat, Scope::Feedback]).unwrap(),
        ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
    ];
}

async fn ask(server: &Server, key: &str, method: Method, path: &str) -> Answer {
    let request = server.request(method, path).bearer_auth(key);
    Answer::of(
        request
            .json(&chat_body("A", json!({})))
            .send()
            .await
            .unwrap(),
    )
    .await
}

#[tokio::test]
async fn only_known_keys_are_let_in() {
    let server = Server::with(keyed).await;
    let chat = "/v1/chat/completions";
    let answer = server.chat("A").await;
    assert_eq!(answer.error(401), "invalid_api_key");
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    for wrong in ["", "key-of-an", "key-of-ann2", "KEY-OF-ANN"] {
        let answer = ask(&server, wrong, Method::POST, chat).await;
        assert_eq!(answer.error(401), "invalid_api_key", "{wrong}");
    }
    let answer = ask(&server, "key-of-ann", Method::POST, chat).await;
    answer.ok();
    assert_eq!(server.turn(answer.turn()).key.as_deref(), Some("ann"));
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/readyz").await.status, 200);
    server.get("/metrics").await.error(401);
}

#[tokio::test]
async fn each_path_needs_its_scope() {
    let server = Server::with(keyed).await;
    let rows = [
        ("key-of-ann", Method::POST, "/v1/feedback", 403),
        ("key-of-ann", Method::GET, "/v1/sessions", 403),
        ("key-of-ann", Method::GET, "/v1/adapters", 403),
        ("key-of-ann", Method::GET, "/v1/steps/1", 403),
        ("key-of-ann", Method::POST, "/v1/plugins/reload", 403),
        ("key-of-ann", Method::GET, "/metrics", 403),
        ("key-of-ann", Method::GET, "/", 403),
        ("key-of-ann", Method::GET, "/v1/models", 200),
        ("key-of-bob", Method::POST, "/v1/feedback", 400),
        ("key-of-ops", Method::GET, "/v1/sessions", 200),
        ("key-of-ops", Method::GET, "/v1/adapters", 200),
        ("key-of-ops", Method::GET, "/v1/steps/1", 404),
        ("key-of-ops", Method::GET, "/v1/steps/first", 400),
        ("key-of-ops", Method::POST, "/v1/plugins/reload", 404),
        ("key-of-ops", Method::GET, "/metrics", 200),
        ("key-of-ops", Method::GET, "/", 200),
    ];
    for (key, method, path, status) in rows {
        let answer = ask(&server, key, method, path).await;
        assert_eq!(answer.status, status, "{key} {path}: {}", answer.text);
        if status == 403 {
            assert_eq!(answer.error(403), "missing_scope");
        }
    }
}

#[tokio::test]
async fn a_session_is_visible_to_its_key_and_the_operator_only() {
    let server = Server::with(keyed).await;
    let answer = ask(&server, "key-of-ann", Method::POST, "/v1/chat/completions").await;
    let turn = answer.turn();
    let session = answer.header("x-clawhost-session").to_owned();
    let paths = [
        format!("/v1/sessions/{session}"),
        format!("/v1/sessions/{session}/explain"),
        format!("/v1/turns/{turn}/explain"),
    ];
    for path in &paths {
        assert_eq!(
            ask(&server, "key-of-ann", Method::GET, path).await.status,
            200,
            "{path}"
        );
        assert_eq!(
            ask(&server, "key-of-ops", Method::GET, path).await.status,
            200,
            "{path}"
        );
        ask(&server, "key-of-bob", Method::GET, path)
            .await
            .error(404);
    }
    ask(&server, "key-of-bob", Method::DELETE, &paths[0])
        .await
        .error(404);
    ask(&server, "key-of-ann", Method::DELETE, &paths[0])
        .await
        .ok();
}

#[tokio::test]
async fn a_key_that_asks_too_often_is_told_when_to_come_back() {
    let server = Server::with(|options| {
        keyed(options);
        options.rate = Some(RateLimit {
            per_minute: 1,
            burst: 2,
        });
    })
    .await;
    for _ in 0..2 {
        ask(&server, "key-of-ann", Method::GET, "/v1/models")
            .await
            .ok();
    }
    let answer = ask(&server, "key-of-ann", Method::GET, "/v1/models").await;
    assert_eq!(answer.error(429), "rate_limit_exceeded");
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    ask(&server, "key-of-bob", Method::GET, "/v1/models")
        .await
        .ok();
}

#[tokio::test]
async fn a_key_may_have_an_adapter_of_its_own() {
    let server = Server::with(|options| {
        keyed(options);
        let chat = |name: &str, secret: &str| ApiKey::new(name, secret, [Scope::Chat]).unwrap();
        options.keys.push(chat("old", "key-of-old").with_adapter(0));
        options
            .keys
            .push(chat("gone", "key-of-gone").with_adapter(7));
    })
    .await;
    let adapter = clawhost_policy::Adapter::init(
        server.engine.model().config(),
        clawhost_policy::LoraSpec::default(),
        3,
    );
    server.engine.publish(4, Some(std::sync::Arc::new(adapter)));
    let chat = "/v1/chat/completions";
    let answer = ask(&server, "key-of-ann", Method::POST, chat).await;
    assert!(answer.header("x-clawhost-adapter").starts_with("4:"));
    let answer = ask(&server, "key-of-old", Method::POST, chat).await;
    answer.ok();
    assert!(answer.header("x-clawhost-adapter").starts_with("0:"));
    let answer = ask(&server, "key-of-gone", Method::POST, chat).await;
    assert_eq!(answer.error(503), "adapter_not_held");
    let named = chat_body("A", json!({"model": "tiny:0"}));
    let request = server
        .request(Method::POST, chat)
        .bearer_auth("key-of-gone");
    Answer::of(request.json(&named).send().await.unwrap())
        .await
        .ok();
}

#[tokio::test]
async fn a_browser_is_asked_for_the_key_of_the_operator_page() {
    let server = Server::with(keyed).await;
    let answer = server.get("/").await;
    answer.error(401);
    assert!(answer.header("www-authenticate").starts_with("Basic"));
    let page = server
        .request(Method::GET, "/")
        .basic_auth("me", Some("key-of-ops"));
    assert_eq!(page.send().await.unwrap().status(), 200);
    // Nothing that changes something takes what a browser sends by itself.
    let request = server
        .request(Method::POST, "/v1/chat/completions")
        .basic_auth("me", Some("key-of-ops"))
        .json(&chat_body("A", json!({})));
    Answer::of(request.send().await.unwrap()).await.error(401);
}

#[tokio::test]
async fn without_keys_foreign_web_pages_are_kept_out() {
    let server = Server::with(|options| options.allowed_hosts = vec!["gate.lan".into()]).await;
    let port = server.address.port();
    let rows = [
        (format!("127.0.0.1:{port}"), None, 200),
        (
            format!("localhost:{port}"),
            Some("http://localhost:5173"),
            200,
        ),
        ("gate.lan".to_owned(), None, 200),
        (format!("evil.example:{port}"), None, 403),
        (
            format!("localhost:{port}"),
            Some("https://evil.example"),
            403,
        ),
        (format!("localhost:{port}"), Some("null"), 403),
    ];
    for (host, origin, status) in rows {
        let mut request = server
            .request(Method::POST, "/v1/chat/completions")
            .header("host", &host)
            .json(&chat_body("A", json!({})));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let answer = Answer::of(request.send().await.unwrap()).await;
        assert_eq!(answer.status, status, "{host} {origin:?}: {}", answer.text);
        if status == 403 {
            answer.error(403);
        }
    }
}

#[tokio::test]
async fn with_a_key_any_host_name_and_origin_will_do() {
    let server = Server::with(keyed).await;
    let request = server
        .request(Method::GET, "/v1/models")
        .header("host", "models.example")
        .header("origin", "https://app.example")
        .bearer_auth("key-of-ann");
    assert_eq!(request.send().await.unwrap().status(), 200);
}
