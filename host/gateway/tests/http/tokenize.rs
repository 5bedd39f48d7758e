//! Text and conversations as tokens, and back, as vLLM answers it.

use serde_json::{Value, json};

use crate::server::Server;

#[tokio::test]
async fn texts_and_conversations_become_tokens_and_tokens_text() {
    let server = Server::start().await;
    let told = server
        .post("/tokenize", &json!({"model": "tiny", "prompt": "Hi"}))
        .await
        .ok();
    assert_eq!(
        told,
        json!({"count": 2, "max_model_len": 65_536, "tokens": [72, 105], "token_strs": null})
    );
    let messages = json!([{"role": "user", "content": "H"}, {"role": "assistant", "content": "A"}]);
    let told = server
        .post(
            "/tokenize",
            &json!({"messages": messages, "return_token_strs": true}),
        )
        .await
        .ok();
    let text = "user: H\nassistant: A";
    assert_eq!(told["count"], text.len());
    assert_eq!(told["token_strs"][0], "u");
    let back = server
        .post("/detokenize", &json!({"tokens": told["tokens"]}))
        .await
        .ok();
    assert_eq!(back, json!({"prompt": text}));
    // The same tokens that a reply would be made from.
    let tool =
        json!({"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}});
    let asked = json!({"messages": [{"role": "user", "content": "A"}], "tools": [tool],
                       "chat_template_kwargs": {"probe": true}, "add_generation_prompt": false});
    let told = server.post("/tokenize", &asked).await.ok();
    let answer = server.chat_with("A", asked).await;
    assert_eq!(json!(server.turn(answer.turn()).prompt_ids), told["tokens"]);
    let end = server.engine.end_tokens()[0];
    let back = server
        .post("/detokenize", &json!({"tokens": [65, end]}))
        .await
        .ok();
    assert_eq!(back["prompt"], "A<|end|>");
    assert_eq!(server.journal.counts().unwrap().sessions, 1);
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let server = Server::start().await;
    let user = json!([{"role": "user", "content": "A"}]);
    let rows = [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 3}), "prompt"),
        (
            "/tokenize",
            json!({"prompt": "A", "messages": user}),
            "messages",
        ),
        ("/tokenize", json!({"messages": []}), "messages"),
        (
            "/tokenize",
            json!({"messages": user, "chat_template": "x"}),
            "chat_template",
        ),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [1, -1]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [99_999]}), "tokens[0]"),
    ];
    for (path, body, param) in rows {
        let answer = server.post(path, &body).await;
        answer.error(400);
        assert_eq!(
            answer.json()["error"]["param"],
            Value::from(param),
            "{}",
            answer.text
        );
    }
}
