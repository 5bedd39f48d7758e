//! API keys, scopes, rate limits, and the protection of a server without keys from web pages.

use clawhost_gateway::{ApiKey, GatewayOptions, RateLimit, Scope};
use reqwest::Method;
use serde_json::json;

use crate::server::{ApiResponse, Server, chat_body};

fn keyed(options: &mut GatewayOptions) {
    options.keys = vec![
        ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
        ApiKey::new("bob", "key-of-bob", [Scope::Chat, Scope::Feedback]).unwrap(),
        ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
    ];
}

async fn send_request(server: &Server, key: &str, method: Method, path: &str) -> ApiResponse {
    let request = server.request(method, path).bearer_auth(key);
    ApiResponse::read(
        request
            .json(&chat_body("A", json!({})))
            .send()
            .await
            .unwrap(),
    )
    .await
}

#[tokio::test]
async fn unknown_keys_are_rejected() {
    let server = Server::with(keyed).await;
    let chat = "/v1/chat/completions";
    let answer = server.chat("A").await;
    assert_eq!(answer.error(401), "invalid_api_key");
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    for wrong in ["", "key-of-an", "key-of-ann2", "KEY-OF-ANN"] {
        let answer = send_request(&server, wrong, Method::POST, chat).await;
        assert_eq!(answer.error(401), "invalid_api_key", "{wrong}");
    }
    let answer = send_request(&server, "key-of-ann", Method::POST, chat).await;
    answer.ok();
    assert_eq!(server.turn(answer.turn()).key.as_deref(), Some("ann"));
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/readyz").await.status, 200);
    server.get("/metrics").await.error(401);
}

#[tokio::test]
async fn each_path_requires_its_scope() {
    let server = Server::with(keyed).await;
    let rows = [
        ("key-of-ann", Method::POST, "/v1/feedback", 403),
        ("key-of-ann", Method::GET, "/v1/sessions", 403),
        ("key-of-ann", Method::GET, "/v1/adapters", 403),
        ("key-of-ann", Method::GET, "/v1/steps/1", 403),
        ("key-of-ann", Method::POST, "/v1/plugins/reload", 403),
        ("key-of-ann", Method::GET, "/metrics", 403),
        ("key-of-ann", Method::GET, "/v1/models", 200),
        ("key-of-bob", Method::POST, "/v1/feedback", 400),
        ("key-of-ops", Method::GET, "/v1/sessions", 200),
        ("key-of-ops", Method::GET, "/v1/adapters", 200),
        ("key-of-ops", Method::GET, "/v1/steps/1", 404),
        ("key-of-ops", Method::GET, "/v1/steps/first", 400),
        ("key-of-ops", Method::POST, "/v1/plugins/reload", 404),
        ("key-of-ops", Method::GET, "/metrics", 200),
    ];
    for (key, method, path, status) in rows {
        let answer = send_request(&server, key, method, path).await;
        assert_eq!(answer.status, status, "{key} {path}: {}", answer.text);
        if status == 403 {
            assert_eq!(answer.error(403), "missing_scope");
        }
    }
}

#[tokio::test]
async fn session_is_visible_to_its_key_and_operators_only() {
    let server = Server::with(keyed).await;
    let answer = send_request(&server, "key-of-ann", Method::POST, "/v1/chat/completions").await;
    let turn = answer.turn();
    let session = answer.header("x-clawhost-session").to_owned();
    let paths = [
        format!("/v1/sessions/{session}"),
        format!("/v1/sessions/{session}/explain"),
        format!("/v1/turns/{turn}/explain"),
    ];
    for path in &paths {
        assert_eq!(
            send_request(&server, "key-of-ann", Method::GET, path)
                .await
                .status,
            200,
            "{path}"
        );
        assert_eq!(
            send_request(&server, "key-of-ops", Method::GET, path)
                .await
                .status,
            200,
            "{path}"
        );
        send_request(&server, "key-of-bob", Method::GET, path)
            .await
            .error(404);
    }
    send_request(&server, "key-of-bob", Method::DELETE, &paths[0])
        .await
        .error(404);
    send_request(&server, "key-of-ann", Method::DELETE, &paths[0])
        .await
        .ok();
}

#[tokio::test]
async fn rate_limited_key_gets_retry_after() {
    let server = Server::with(|options| {
        keyed(options);
        options.rate = Some(RateLimit {
            per_minute: 1,
            burst: 2,
        });
    })
    .await;
    for _ in 0..2 {
        send_request(&server, "key-of-ann", Method::GET, "/v1/models")
            .await
            .ok();
    }
    let answer = send_request(&server, "key-of-ann", Method::GET, "/v1/models").await;
    assert_eq!(answer.error(429), "rate_limit_exceeded");
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    send_request(&server, "key-of-bob", Method::GET, "/v1/models")
        .await
        .ok();
}

#[tokio::test]
async fn key_can_have_its_own_adapter_version() {
    let server = Server::with(|options| {
        keyed(options);
        let chat = |name: &str, secret: &str| ApiKey::new(name, secret, [Scope::Chat]).unwrap();
        options.keys.push(chat("old", "key-of-old").with_adapter(0));
        options
            .keys
            .push(chat("gone", "key-of-gone").with_adapter(7));
    })
    .await;
    let adapter = clawhost_model::Adapter::init(
        server.engine.model().config(),
        clawhost_model::LoraSpec::default(),
        3,
    );
    server.engine.publish(4, Some(std::sync::Arc::new(adapter)));
    let chat = "/v1/chat/completions";
    let answer = send_request(&server, "key-of-ann", Method::POST, chat).await;
    assert!(answer.header("x-clawhost-adapter").starts_with("4:"));
    let answer = send_request(&server, "key-of-old", Method::POST, chat).await;
    answer.ok();
    assert!(answer.header("x-clawhost-adapter").starts_with("0:"));
    let answer = send_request(&server, "key-of-gone", Method::POST, chat).await;
    assert_eq!(answer.error(503), "adapter_not_held");
    let named = chat_body("A", json!({"model": "tiny:0"}));
    let request = server
        .request(Method::POST, chat)
        .bearer_auth("key-of-gone");
    ApiResponse::read(request.json(&named).send().await.unwrap())
        .await
        .ok();
}

#[tokio::test]
async fn only_the_page_accepts_basic_auth() {
    let server = Server::with(keyed).await;
    let page = server
        .request(Method::GET, "/")
        .basic_auth("me", Some("key-of-ops"));
    let page = ApiResponse::read(page.send().await.unwrap()).await;
    assert!(page.text.contains("No replies yet."), "{}", page.text);
    // Other endpoints do not accept credentials that a browser sends by itself.
    let request = server
        .request(Method::POST, "/v1/chat/completions")
        .basic_auth("me", Some("key-of-ops"))
        .json(&chat_body("A", json!({})));
    ApiResponse::read(request.send().await.unwrap())
        .await
        .error(401);
    let request = server
        .request(Method::GET, "/v1/events")
        .basic_auth("me", Some("key-of-ops"));
    ApiResponse::read(request.send().await.unwrap())
        .await
        .error(401);
}

#[tokio::test]
async fn other_origins_are_rejected_without_keys() {
    let server =
        Server::with(|options| options.server.allowed_hosts = vec!["gate.lan".into()]).await;
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
        let answer = ApiResponse::read(request.send().await.unwrap()).await;
        assert_eq!(answer.status, status, "{host} {origin:?}: {}", answer.text);
        if status == 403 {
            answer.error(403);
        }
    }
}

#[tokio::test]
async fn any_host_and_origin_is_accepted_with_a_key() {
    let server = Server::with(keyed).await;
    let request = server
        .request(Method::GET, "/v1/models")
        .header("host", "models.example")
        .header("origin", "https://app.example")
        .bearer_auth("key-of-ann");
    assert_eq!(request.send().await.unwrap().status(), 200);
}
