//! Invalid requests get an error in OpenAI's format, and the connection stays usable.

use clawhost_engine::EngineOptions;
use clawhost_journal::Journal;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Connection, Server, chat_body, head};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn invalid_requests_are_rejected_and_keep_the_connection() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let good = chat_body("A", json!({})).to_string();
    let chat = |extra: Value| chat_body("A", extra).to_string();
    let json_head = head("POST", CHAT);
    let rows = [
        (
            json_head.clone(),
            "{\"messages\": [".to_owned(),
            400,
            "invalid_json",
        ),
        (json_head.clone(), String::new(), 400, ""),
        (json_head.clone(), "[]".to_owned(), 400, "invalid_type"),
        (
            json_head.clone(),
            "{}".to_owned(),
            400,
            "missing_required_parameter",
        ),
        (
            json_head.replace("application/json", "text/plain"),
            good.clone(),
            415,
            "unsupported_media_type",
        ),
        (
            json_head.clone(),
            chat(json!({"messages": []})),
            400,
            "invalid_value",
        ),
        (
            json_head.clone(),
            chat(json!({"messages": [{"role": "wizard", "content": "x"}]})),
            400,
            "invalid_value",
        ),
        (
            json_head.clone(),
            chat(json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
            400,
            "unsupported_parameter",
        ),
        (
            json_head.clone(),
            chat(
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}),
            ),
            400,
            "invalid_type",
        ),
        (
            json_head.clone(),
            chat(
                json!({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
                    "parameters": {"properties": {"a": {"not": {}}}}}}]}),
            ),
            400,
            "invalid_value",
        ),
        (
            json_head.clone(),
            chat(json!({"response_format": {"type": "json_schema"}})),
            400,
            "missing_required_parameter",
        ),
        (
            json_head.clone(),
            chat(
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}),
            ),
            400,
            "invalid_value",
        ),
        (
            json_head.clone(),
            chat(json!({"temperature": 9})),
            400,
            "invalid_value",
        ),
        (
            json_head.clone(),
            chat(json!({"n": 1000})),
            400,
            "invalid_value",
        ),
        (
            json_head.clone(),
            chat(json!({"model": "gpt-x"})),
            404,
            "model_not_found",
        ),
        (
            json_head.clone(),
            chat(json!({"model": "tiny:99"})),
            404,
            "model_not_found",
        ),
        (
            json_head.clone(),
            chat(json!({"messages": [{"role": "user", "content": "refuse me"}]})),
            400,
            "template_refused",
        ),
        (
            head("POST", "/v1/nothing"),
            good.clone(),
            404,
            "unknown_path",
        ),
        (
            head("GET", "/v1/models/nothing"),
            String::new(),
            404,
            "model_not_found",
        ),
        (head("GET", CHAT), String::new(), 405, "method_not_allowed"),
        (
            head("PUT", "/v1/feedback"),
            String::new(),
            405,
            "method_not_allowed",
        ),
        (
            format!("{json_head}\r\nX-Session-Id: {}", "s".repeat(300)),
            good.clone(),
            400,
            "invalid_value",
        ),
        (
            format!("{json_head}\r\nX-Big: {}", "b".repeat(40 << 10)),
            good.clone(),
            431,
            "headers_too_large",
        ),
    ];
    for (head, body, status, code) in rows {
        let (got, answer) = connection.send(&head, body.as_bytes()).await;
        assert_eq!(got, status, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(
            answer["error"]["code"].as_str().unwrap_or(""),
            code,
            "{body}: {answer}"
        );
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
        let (again, answer) = connection.send(&json_head, good.as_bytes()).await;
        assert_eq!(again, 200, "after {body}: {answer}");
    }
}

#[tokio::test]
async fn rejected_request_leaves_no_turn() {
    let server = Server::start().await;
    server
        .chat_with("A", json!({"model": "other"}))
        .await
        .error(404);
    server
        .chat_with("A", json!({"temperature": -1}))
        .await
        .error(400);
    assert_eq!(server.journal.counts().unwrap().sessions, 0);
}

#[tokio::test]
async fn context_overflow_error_has_both_token_counts() {
    let engine = EngineOptions {
        max_model_len: Some(40),
        ..EngineOptions::default()
    };
    let server = Server::on(Journal::in_memory().unwrap(), engine, |_| {}).await;
    let answer = server.chat(&"x".repeat(100)).await;
    assert_eq!(answer.error(400), "context_length_exceeded");
    assert_eq!(answer.json()["error"]["param"], "messages");
    assert!(
        answer.text.contains("106") && answer.text.contains("40"),
        "{}",
        answer.text
    );
    server.chat("A").await.ok();
}

#[tokio::test]
async fn oversized_body_is_rejected_and_the_connection_reusable() {
    let server = Server::with(|options| options.server.max_body_size = 10_000).await;
    let mut connection = Connection::open(&server).await;
    let huge = chat_body(&"x".repeat(300_000), json!({})).to_string();
    let (status, answer) = connection.send(&head("POST", CHAT), huge.as_bytes()).await;
    assert_eq!(status, 413, "{answer}");
    assert!(
        answer.contains("request_too_large") && answer.contains("10000"),
        "{answer}"
    );
    let good = chat_body("A", json!({})).to_string();
    let (status, _) = connection.send(&head("POST", CHAT), good.as_bytes()).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn body_far_over_the_limit_is_not_read() {
    let server = Server::with(|options| options.server.max_body_size = 10_000).await;
    let mut connection = Connection::open(&server).await;
    let head = format!(
        "{}\r\nExpect: 100-continue\r\nContent-Length: 900000000000\r\n\r\n",
        head("POST", CHAT)
    );
    let (status, _) = connection.raw(&head).await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn wrong_method_gets_allow_header() {
    let server = Server::start().await;
    let answer = server.request(Method::GET, CHAT).send().await.unwrap();
    assert_eq!(answer.status(), 405);
    assert_eq!(answer.headers()["allow"], "POST");
}
