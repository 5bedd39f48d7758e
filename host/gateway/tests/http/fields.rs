//! Fields that change the reply are applied or rejected by name, never ignored.

use serde_json::{Value, json};

use crate::server::Server;

#[tokio::test]
async fn allowed_token_ids_are_enforced_and_recorded_as_forced() {
    let server = Server::start().await;
    let answer = server
        .chat_with("A", json!({"allowed_token_ids": [66], "max_tokens": 3}))
        .await;
    let body = answer.ok();
    assert_eq!(body["choices"][0]["message"]["content"], "BBB");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let completion = server.turn(answer.turn()).completion.unwrap();
    assert_eq!(completion.token_ids, [66, 66, 66]);
    assert_eq!(completion.forced, [0, 1, 2]);
    let answer = server
        .chat_with("A", json!({"allowed_token_ids": [66, 99_999]}))
        .await;
    answer.error(400);
    assert!(answer.text.contains("allowed_token_ids"), "{}", answer.text);
}

#[tokio::test]
async fn bad_words_are_not_generated() {
    let server = Server::start().await;
    let say = async |words: Value| {
        let extra = json!({"bad_words": words, "max_tokens": 6});
        let body = server.chat_with("H", extra).await.ok();
        body["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(say(json!([])).await, "Hello, w\u{f6}rld!");
    let biased = say(json!(["!"])).await;
    assert!(
        biased.starts_with("Hello, w\u{f6}rld") && !biased.contains('!'),
        "{biased}"
    );
    // A word of two tokens.
    assert!(!say(json!(["\u{f6}"])).await.contains('\u{f6}'));
}

#[tokio::test]
async fn include_stop_str_in_output_keeps_the_stop_string() {
    let server = Server::start().await;
    for (shown, text) in [(false, "one "), (true, "one STOP")] {
        let extra = json!({"stop": ["STOP"], "include_stop_str_in_output": shown});
        let body = server.chat_with("S", extra).await.ok();
        assert_eq!(body["choices"][0]["message"]["content"], text);
        let body = json!({"prompt": "S", "stop": "STOP", "include_stop_str_in_output": shown, "temperature": 0});
        let body = server.post("/v1/completions", &body).await.ok();
        assert_eq!(body["choices"][0]["text"], text);
        assert_eq!(body["choices"][0]["stop_reason"], "STOP");
    }
}

#[tokio::test]
async fn truncate_prompt_tokens_truncates_at_the_requested_side() {
    let server = Server::start().await;
    let rows = [
        (json!({"truncate_prompt_tokens": 1}), "no", 1),
        (
            json!({"truncate_prompt_tokens": 7, "truncation_side": "right"}),
            "yes",
            7,
        ),
        (json!({"truncate_prompt_tokens": -1}), "no", 8),
        (json!({}), "no", 8),
    ];
    for (extra, text, tokens) in rows {
        let answer = server.chat_with("AB", extra.clone()).await;
        let body = answer.ok();
        assert_eq!(body["choices"][0]["message"]["content"], text, "{extra}");
        assert_eq!(body["usage"]["prompt_tokens"], tokens, "{extra}");
        assert_eq!(server.turn(answer.turn()).prompt_ids.len(), tokens);
    }
    let body = json!({"prompt": "AB", "truncate_prompt_tokens": 1, "truncation_side": "right", "temperature": 0,
                      "echo": true});
    let body = server.post("/v1/completions", &body).await.ok();
    assert_eq!(body["choices"][0]["text"], "Ayes");
    assert_eq!(body["usage"]["prompt_tokens"], 1);
}

#[tokio::test]
async fn add_generation_prompt_can_be_disabled() {
    let server = Server::start().await;
    for (begins, text) in [(true, "yes"), (false, "no")] {
        let extra =
            json!({"add_generation_prompt": begins, "chat_template_kwargs": {"probe": true}});
        let body = server.chat_with("x", extra).await.ok();
        assert_eq!(body["choices"][0]["message"]["content"], text);
    }
}

#[tokio::test]
async fn vllm_sampling_fields_apply_in_every_dialect() {
    let server = Server::start().await;
    let extra = json!({"stop": ["STOP"], "bad_words": ["x"], "seed": 5});
    let mut message = json!({"model": "tiny", "max_tokens": 9, "temperature": 0, "messages": [{"role": "user", "content": "S"}]});
    let mut response = json!({"model": "tiny", "input": "S", "temperature": 0});
    for (name, value) in extra.as_object().unwrap() {
        message[name] = value.clone();
        response[name] = value.clone();
    }
    let body = server.post("/v1/messages", &message).await.ok();
    assert_eq!(body["content"][0]["text"], "one ");
    let body = server.post("/v1/responses", &response).await.ok();
    assert_eq!(body["output"][0]["content"][0]["text"], "one ");
}

#[tokio::test]
async fn unsupported_fields_are_rejected_by_name_in_every_dialect() {
    let server = Server::start().await;
    let user = json!([{"role": "user", "content": "A"}]);
    let dialects = [
        ("/v1/chat/completions", json!({"messages": user})),
        (
            "/v1/messages",
            json!({"model": "tiny", "max_tokens": 9, "messages": user}),
        ),
        ("/v1/responses", json!({"input": "A"})),
        ("/v1/completions", json!({"prompt": "A"})),
    ];
    let everywhere = [
        ("best_of", json!(3)),
        ("use_beam_search", json!(true)),
        ("chat_template", json!("x")),
        ("thinking_token_budget", json!(5)),
        ("logprob_token_ids", json!([1])),
        ("include_reasoning", json!(false)),
        ("cache_salt", json!("x")),
        ("priority", json!(1)),
        ("verbosity", json!("low")),
    ];
    // Text completions do these.
    let replies = [
        ("echo", json!(true)),
        ("prompt_logprobs", json!(1)),
        ("documents", json!([{"text": "x"}])),
    ];
    let others = [
        ("n", json!(2)),
        ("truncate_prompt_tokens", json!(5)),
        ("return_token_ids", json!(true)),
        ("add_generation_prompt", json!(false)),
    ];
    for (path, body) in dialects {
        let mut rows = everywhere.to_vec();
        if path != "/v1/completions" {
            rows.extend(replies.clone());
        }
        if path == "/v1/messages" || path == "/v1/responses" {
            rows.extend(others.clone());
        }
        for (name, value) in rows {
            let mut body = body.clone();
            body[name] = value;
            let answer = server.post(path, &body).await;
            assert_eq!(answer.status, 400, "{path} {name}: {}", answer.text);
            let message = answer.json()["error"]["message"].clone();
            assert!(
                message.as_str().unwrap().contains(name),
                "{path} {name}: {message}"
            );
        }
        server.post(path, &body).await.ok();
    }
}
