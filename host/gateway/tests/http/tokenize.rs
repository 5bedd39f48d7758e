//! `/tokenize` and `/detokenize` in vLLM's format.

use serde_json::{Value, json};

use crate::server::Server;

#[tokio::test]
async fn tokenize_and_detokenize_round_trip() {
    let server = Server::start().await;
    let tokenized = server
        .post("/tokenize", &json!({"model": "tiny", "prompt": "Hi"}))
        .await
        .ok();
    assert_eq!(
        tokenized,
        json!({"count": 2, "max_model_len": 65_536, "tokens": [72, 105], "token_strs": null})
    );
    let messages = json!([{"role": "user", "content": "H"}, {"role": "assistant", "content": "A"}]);
    let tokenized = server
        .post(
            "/tokenize",
            &json!({"messages": messages, "return_token_strs": true}),
        )
        .await
        .ok();
    let text = "user: H\nassistant: A";
    assert_eq!(tokenized["count"], text.len());
    assert_eq!(tokenized["token_strs"][0], "u");
    let back = server
        .post("/detokenize", &json!({"tokens": tokenized["tokens"]}))
        .await
        .ok();
    assert_eq!(back, json!({"prompt": text}));
    // The same tokens as the prompt of a chat completion.
    let tool =
        json!({"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}});
    let request = json!({"messages": [{"role": "user", "content": "A"}], "tools": [tool],
                       "chat_template_kwargs": {"probe": true}, "add_generation_prompt": false});
    let tokenized = server.post("/tokenize", &request).await.ok();
    let answer = server.chat_with("A", request).await;
    assert_eq!(
        json!(server.turn(answer.turn()).prompt_ids),
        tokenized["tokens"]
    );
    let end = server.engine.eos_token_ids()[0];
    let back = server
        .post("/detokenize", &json!({"tokens": [65, end]}))
        .await
        .ok();
    assert_eq!(back["prompt"], "A<|end|>");
    assert_eq!(server.journal.counts().unwrap().sessions, 1);
}

#[tokio::test]
async fn invalid_fields_are_named_in_param() {
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
