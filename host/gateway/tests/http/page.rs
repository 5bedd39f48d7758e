//! The operator page as served: escaped text, its assets, and nothing private without an operator's key.

use clawhost_gateway::{ApiKey, Scope};
use reqwest::Method;
use serde_json::json;

use crate::server::{ApiResponse, Server, chat_body};

#[tokio::test]
async fn text_on_the_page_is_escaped() {
    let server = Server::with(|options| options.model_name = "<img src=x>".into()).await;
    server
        .chat_with(
            "<b onclick=\"x\">'X",
            json!({"model": null, "session_id": "<i>s</i>"}),
        )
        .await
        .ok();
    let answer = server.get("/").await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with("text/html"));
    let page = answer
        .text
        .replace("<script type=\"module\" src=\"/page.js\"></script>", "");
    for markup in [
        "<script",
        "<b onclick",
        "<i>s",
        "<img",
        "http://",
        "https://",
        "style=",
    ] {
        assert!(!page.contains(markup), "{markup} in {page}");
    }
    for shown in [
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "&lt;i&gt;s&lt;/i&gt;",
        "&lt;b onclick=&quot;x&quot;&gt;&#39;X",
    ] {
        assert!(page.contains(shown), "{shown} is missing in {page}");
    }
}

#[tokio::test]
async fn policy_allows_only_the_servers_own_files() {
    let server = Server::start().await;
    let page = server.get("/").await;
    let policy = page.header("content-security-policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "trusted-types 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for (path, kind, part) in [
        ("/page.js", "text/javascript", "textContent"),
        ("/page.css", "text/css", "light-dark("),
    ] {
        let file = server.get(path).await;
        assert_eq!(file.status, 200);
        assert!(file.header("content-type").starts_with(kind));
        assert!(file.text.contains(part));
        assert!(page.text.contains(path));
        for outside in ["https://", "@import", "innerHTML", "eval("] {
            assert!(!file.text.contains(outside), "{outside} in {path}");
        }
    }
}

#[tokio::test]
async fn page_has_no_data_without_an_operators_key() {
    let server = Server::with(|options| {
        options.keys = vec![
            ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
            ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
        ];
    })
    .await;
    let request = server.request(Method::POST, "/v1/chat/completions");
    let request = request
        .bearer_auth("key-of-ann")
        .json(&chat_body("a secret X", json!({})));
    ApiResponse::read(request.send().await.unwrap()).await.ok();
    for (key, private) in [
        (None, false),
        (Some("key-of-nobody"), false),
        (Some("key-of-ann"), false),
        (Some("key-of-ops"), true),
    ] {
        let mut request = server.request(Method::GET, "/");
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let page = ApiResponse::read(request.send().await.unwrap()).await;
        assert_eq!(page.status, 200);
        for part in ["a secret X", "alert(1)", "adapter <code>", "<td", "<figure"] {
            assert_eq!(page.text.contains(part), private, "{key:?}: {part}");
        }
        assert!(page.text.contains("id=\"key-form\""));
    }
    for path in ["/page.js", "/page.css"] {
        assert_eq!(server.get(path).await.status, 200);
    }
}
