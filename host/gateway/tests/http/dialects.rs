//! Behaviour that all dialects share: error texts that clients match on, allowed tools, truncation, deletion.

use clawhost_engine::EngineOptions;
use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::Journal;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const COMPLETIONS: &str = "/v1/completions";

/// A request of each dialect with the message `text`.
fn requests(text: &str) -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": text}]);
    [
        (
            CHAT,
            json!({"model": "tiny", "messages": messages, "temperature": 0}),
        ),
        (
            MESSAGES,
            json!({"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 9}),
        ),
        (
            RESPONSES,
            json!({"model": "tiny", "input": text, "temperature": 0}),
        ),
        (
            COMPLETIONS,
            json!({"model": "tiny", "prompt": text, "temperature": 0}),
        ),
    ]
}

async fn small(context: usize) -> Server {
    let engine = EngineOptions {
        max_model_len: Some(context),
        ..EngineOptions::default()
    };
    Server::on(Journal::in_memory().unwrap(), engine, |_| {}).await
}

#[tokio::test]
async fn context_overflow_errors_match_what_clients_expect() {
    let server = small(40).await;
    for (path, body) in requests(&"x".repeat(100)) {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["type"], "invalid_request_error", "{path}");
        let tokens = if path == COMPLETIONS { 100 } else { 106 };
        if path == MESSAGES {
            let words = format!("prompt is too long: {tokens} tokens > 39 maximum");
            assert!(message.starts_with(&words), "{message}");
            continue;
        }
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
        let words = format!(
            "This model's maximum context length is 40 tokens. However, you requested {} tokens ({tokens} in the messages",
            tokens + 1
        );
        assert!(message.starts_with(&words), "{message}");
    }
}

#[tokio::test]
async fn unknown_model_is_404_in_every_dialect() {
    let server = Server::start().await;
    let mut all = requests("A").to_vec();
    all.push(("/v1/messages/count_tokens", requests("A")[1].1.clone()));
    all.push(("/v1/responses/input_tokens", requests("A")[2].1.clone()));
    all.push(("/tokenize", json!({"prompt": "A"})));
    all.push(("/detokenize", json!({"tokens": [65]})));
    for (path, mut body) in all {
        body["model"] = "gpt-x".into();
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text);
        let error = answer.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains("gpt-x"));
        if path.starts_with(MESSAGES) {
            assert_eq!(error["type"], "not_found_error", "{path}");
        } else {
            assert_eq!(
                (error["code"].as_str(), error["param"].as_str()),
                (Some("model_not_found"), Some("model"))
            );
        }
    }
    assert_eq!(server.journal.counts().unwrap().sessions, 0);
}

/// The tools `read` and `stat` with one argument each.
fn tools(flat: bool) -> Value {
    let tool = |name: &str| {
        let parameters = json!({"type": "object", "properties": {"k": {"enum": ["v"]}}, "required": ["k"],
                                "additionalProperties": false});
        if flat {
            json!({"type": "function", "name": name, "parameters": parameters})
        } else {
            json!({"type": "function", "function": {"name": name, "parameters": parameters}})
        }
    };
    json!([tool("read"), tool("stat")])
}

#[tokio::test]
async fn allowed_tools_restricts_offered_and_called_tools() {
    let server = Server::start().await;
    for mode in ["auto", "required"] {
        let nested =
            json!({"mode": mode, "tools": [{"type": "function", "function": {"name": "stat"}}]});
        let mut chat = requests("A")[0].1.clone();
        chat["tools"] = tools(false);
        chat["tool_choice"] = json!({"type": "allowed_tools", "allowed_tools": nested});
        let mut response = requests("A")[2].1.clone();
        response["tools"] = tools(true);
        response["tool_choice"] = json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "stat"}]});
        for (path, mut body) in [(CHAT, chat), (RESPONSES, response)] {
            body["parallel_tool_calls"] = false.into();
            if mode == "required" {
                // Random sampling, because greedy decoding may generate white space forever.
                body["temperature"] = 1.into();
                body["seed"] = 3.into();
            }
            let answer = server.post(path, &body).await;
            answer.ok();
            let turn = server.turn(answer.turn());
            let offered = &turn.tools;
            assert_eq!(offered.len(), 1, "{path}");
            assert_eq!(offered[0].function.name, "stat");
            let reply = json!(turn.completion.unwrap().reply);
            if mode == "required" {
                let function = &reply["tool_calls"][0]["function"];
                assert_eq!(function["name"], "stat", "{reply}");
                let arguments = function["arguments"].as_str().unwrap();
                assert_eq!(
                    serde_json::from_str::<Value>(arguments).unwrap(),
                    json!({"k": "v"})
                );
            } else {
                assert_eq!(reply["content"], "yes");
            }
        }
    }
    let mut unknown = requests("A")[0].1.clone();
    unknown["tools"] = tools(false);
    let named =
        json!({"mode": "auto", "tools": [{"type": "function", "function": {"name": "write"}}]});
    unknown["tool_choice"] = json!({"type": "allowed_tools", "allowed_tools": named});
    let answer = server.post(CHAT, &unknown).await;
    assert_eq!(answer.error(400), "invalid_value");
    assert_eq!(answer.json()["error"]["param"], "tool_choice");
}

#[tokio::test]
async fn truncation_auto_drops_the_oldest_messages() {
    let server = small(60).await;
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let input = json!([
        say("user", &"x".repeat(30)),
        say("assistant", &"y".repeat(20)),
        say("user", "A")
    ]);
    let mut body = json!({"model": "tiny", "input": input, "instructions": "i", "temperature": 0});
    let answer = server.post(RESPONSES, &body).await;
    assert_eq!(answer.error(400), "context_length_exceeded");

    body["truncation"] = "auto".into();
    let answer = server.post(RESPONSES, &body).await;
    let response = answer.ok();
    assert_eq!(response["truncation"], "auto");
    assert_eq!(response["output"][0]["content"][0]["text"], "yes");
    assert_eq!(
        response["usage"]["input_tokens"],
        "system: i\nuser: A".len()
    );
    let turn = server.turn(answer.turn());
    assert_eq!(
        json!(turn.messages),
        json!([say("system", "i"), say("user", "A")])
    );
    // A conversation that fits is not truncated.
    body["input"] = json!([say("user", "x"), say("assistant", "y"), say("user", "A")]);
    let turn = server.turn(server.post(RESPONSES, &body).await.turn());
    assert_eq!(turn.messages.len(), 4);
    // A single message that is too long is rejected with both token counts.
    body["input"] = "x".repeat(100).into();
    let answer = server.post(RESPONSES, &body).await;
    assert_eq!(answer.error(400), "context_length_exceeded");
}

#[tokio::test]
async fn response_can_be_deleted_by_its_owner_only() {
    let server = Server::with(|options| {
        options.keys = vec![
            ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
            ApiKey::new("bob", "key-of-bob", [Scope::Chat]).unwrap(),
            ApiKey::new("eve", "key-of-eve", [Scope::Feedback]).unwrap(),
        ];
    })
    .await;
    let send = async |key: &str, method: Method, path: &str, body: Option<Value>| {
        let mut request = server.request(method, path).bearer_auth(key);
        if let Some(body) = body {
            request = request.json(&body);
        }
        ApiResponse::read(request.send().await.unwrap()).await
    };
    let request_body = |text: &str, previous: Value| {
        Some(
            json!({"model": "tiny", "input": text, "temperature": 0, "previous_response_id": previous}),
        )
    };
    let first = send(
        "key-of-ann",
        Method::POST,
        RESPONSES,
        request_body("A", Value::Null),
    )
    .await;
    let id = first.ok()["id"].clone();
    let second = send(
        "key-of-ann",
        Method::POST,
        RESPONSES,
        request_body("B", id.clone()),
    )
    .await;
    let kept = second.ok()["id"].clone();
    let path = |id: &Value| format!("{RESPONSES}/{}", id.as_str().unwrap());

    let none = send("", Method::DELETE, &path(&id), None).await;
    assert_eq!(none.error(401), "invalid_api_key");
    send("key-of-eve", Method::DELETE, &path(&id), None)
        .await
        .error(403);
    let others = send("key-of-bob", Method::DELETE, &path(&id), None).await;
    assert_eq!(others.error(404), "response_not_found");
    send("key-of-ann", Method::GET, &path(&id), None).await.ok();

    let deleted = send("key-of-ann", Method::DELETE, &path(&id), None).await;
    assert_eq!(
        deleted.ok(),
        json!({"id": id, "object": "response", "deleted": true})
    );
    for method in [Method::GET, Method::DELETE] {
        let deleted = send("key-of-ann", method, &path(&id), None).await;
        assert_eq!(deleted.error(404), "response_not_found");
    }
    let next = send("key-of-ann", Method::POST, RESPONSES, request_body("A", id)).await;
    assert_eq!(next.error(400), "previous_response_not_found");
    assert_eq!(
        server
            .journal
            .turn(clawhost_journal::TurnId(first.turn()))
            .unwrap(),
        None
    );
    assert_eq!(server.journal.forget_records(9).unwrap().len(), 1);
    send("key-of-ann", Method::GET, &path(&kept), None)
        .await
        .ok();
    // A reply requested in another dialect is not a response.
    let chat = send(
        "key-of-ann",
        Method::POST,
        CHAT,
        Some(requests("A")[0].1.clone()),
    )
    .await;
    let deleted = send("key-of-ann", Method::DELETE, &path(&chat.ok()["id"]), None).await;
    deleted.error(404);
}
