//! Feedback identifies a single reply, or returns an error.

use serde_json::{Value, json};

use crate::server::Server;

#[tokio::test]
async fn reply_can_be_identified_in_three_ways() {
    let server = Server::start().await;
    let answer = server.chat_with("A", json!({"session_id": "s"})).await;
    let (turn, response) = (answer.turn(), answer.ok()["id"].clone());
    let rows = [
        json!({"response_id": response, "score": 1}),
        json!({"turn_id": turn, "score": -0.5, "text": "too short"}),
        json!({"session_id": "s", "turn": 0, "text": "show the steps"}),
        json!({"session_id": "s", "score": 0}),
    ];
    for body in &rows {
        let kept = server.post("/v1/feedback", body).await.ok();
        assert_eq!(kept["turn"], turn, "{body}");
        assert_eq!(kept["object"], "feedback");
    }
    let feedback = server.turn(turn).feedback;
    assert_eq!(feedback.len(), 4);
    assert_eq!(feedback[1].score, Some(-0.5));
    assert_eq!(feedback[1].text.as_deref(), Some("too short"));
    assert_eq!(feedback[2].score, None);
}

#[tokio::test]
async fn invalid_and_ambiguous_feedback_is_rejected() {
    let server = Server::start().await;
    let answer = server
        .chat_with("A", json!({"session_id": "s", "n": 2}))
        .await;
    let response = answer.ok()["id"].clone();
    let rows: [(Value, u16, &str); 10] = [
        (json!({"score": 1}), 400, "response_id"),
        (json!({"response_id": response}), 400, "score"),
        (json!({"response_id": response, "text": "  "}), 400, "score"),
        (json!({"response_id": response, "score": 2}), 400, "score"),
        (
            json!({"response_id": response, "score": "up"}),
            400,
            "score",
        ),
        (json!({"response_id": response, "score": 1}), 400, "choice"),
        (
            json!({"response_id": response, "score": 1, "choice": 2}),
            404,
            "response_id",
        ),
        (
            json!({"response_id": "chatcmpl-x", "score": 1}),
            404,
            "response_id",
        ),
        (json!({"turn_id": 999, "score": 1}), 404, "turn_id"),
        (
            json!({"session_id": "other", "score": 1}),
            404,
            "session_id",
        ),
    ];
    for (body, status, param) in rows {
        let answer = server.post("/v1/feedback", &body).await;
        answer.error(status);
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    let second = json!({"response_id": response, "score": 1, "choice": 1});
    let kept = server.post("/v1/feedback", &second).await.ok();
    assert_eq!(server.turn(kept["turn"].as_i64().unwrap()).choice, 1);
}

#[tokio::test]
async fn feedback_on_incomplete_replies_is_rejected() {
    let server = Server::start().await;
    server
        .chat_with("F", json!({"session_id": "f"}))
        .await
        .error(500);
    let turn = server.turns("f")[0].id;
    let body = json!({"turn_id": turn, "score": 1});
    let answer = server.post("/v1/feedback", &body).await;
    assert_eq!(answer.error(409), "turn_not_complete");
}
