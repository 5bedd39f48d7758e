//! Sessions can be listed, retrieved, explained, ended and deleted.

use reqwest::Method;
use serde_json::json;

use crate::server::{ApiResponse, Server};

#[tokio::test]
async fn session_is_set_by_headers_and_body_fields() {
    let server = Server::start().await;
    let request = server
        .request(Method::POST, "/v1/chat/completions")
        .header("x-session-id", "from header")
        .header("x-turn-type", "side")
        .json(&crate::server::chat_body(
            "A",
            json!({"session_id": "from body"}),
        ));
    let answer = ApiResponse::read(request.send().await.unwrap()).await;
    assert_eq!(answer.header("x-clawhost-session"), "from header");
    assert_eq!(server.turn(answer.turn()).kind.as_str(), "side");
    let answer = server
        .chat_with("A", json!({"session_id": "from body"}))
        .await;
    assert_eq!(answer.header("x-clawhost-session"), "from body");
    let answer = server.chat("A").await;
    assert!(!answer.header("x-clawhost-session").is_empty());
}

#[tokio::test]
async fn session_lists_turns_without_messages_by_default() {
    let server = Server::start().await;
    server
        .chat_with("A", json!({"session_id": "a/b c"}))
        .await
        .ok();
    let body = server.get("/v1/sessions/a%2Fb%20c").await.ok();
    assert_eq!(body["id"], "a/b c");
    let turn = &body["turns"][0];
    assert_eq!(turn["completion"]["reply"]["content"], "yes");
    for hidden in [
        "/messages",
        "/prompt_ids",
        "/completion/token_ids",
        "/completion/logprobs",
    ] {
        assert!(turn.pointer(hidden).is_none(), "{hidden}");
    }
    let body = server
        .get("/v1/sessions/a%2Fb%20c?include=messages,tokens")
        .await
        .ok();
    let turn = &body["turns"][0];
    assert_eq!(turn["messages"][0]["content"], "A");
    assert_eq!(turn["completion"]["token_ids"].as_array().unwrap().len(), 2);
    let list = server.get("/v1/sessions?limit=5").await.ok();
    assert_eq!(list["data"][0]["id"], "a/b c");
    server.get("/v1/sessions?limit=many").await.error(400);
}

#[tokio::test]
async fn session_can_be_explained_ended_and_deleted() {
    let server = Server::start().await;
    let answer = server.chat_with("A", json!({"session_id": "s"})).await;
    let turn = answer.turn();
    let explained = server.get("/v1/sessions/s/explain").await.ok();
    assert!(
        explained.to_string().contains(&turn.to_string()),
        "{explained}"
    );
    assert!(
        server
            .get(&format!("/v1/turns/{turn}/explain"))
            .await
            .ok()
            .is_object()
    );
    server.get("/v1/turns/seven/explain").await.error(400);
    assert_eq!(
        server.get("/v1/turns/999/explain").await.error(404),
        "unknown_turn"
    );

    let nothing = json!({});
    server.post("/v1/sessions/s/done", &nothing).await.ok();
    let ended = server.journal.session(&"s".into()).unwrap().unwrap();
    assert!(ended.ended_ms.is_some());

    let path = "/v1/sessions/s";
    let forgotten = server.request(Method::DELETE, path).send().await.unwrap();
    let forgotten = ApiResponse::read(forgotten).await.ok();
    assert_eq!(forgotten["deleted"], true);
    assert_eq!(forgotten["forgotten"]["turns"], json!([turn]));
    for path in [path, "/v1/sessions/s/explain"] {
        assert_eq!(server.get(path).await.error(404), "unknown_session");
    }
    server
        .post("/v1/sessions/s/done", &nothing)
        .await
        .error(404);
}
