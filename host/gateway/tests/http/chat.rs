//! Non-streaming chat completions: text, usage, choices, logprobs, model names, and the recorded turns.

use clawhost_cpu::CpuModel;
use clawhost_engine::Sequence;
use clawhost_journal::{Finish, TurnState};
use serde_json::{Value, json};

use crate::server::Server;

fn content(body: &Value) -> &str {
    body["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn response_has_openai_format() {
    let server = Server::start().await;
    let answer = server.chat("say H").await;
    let body = answer.ok();
    assert_eq!(content(&body), "Hello, wörld!");
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "tiny");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].as_i64().unwrap() > 1_700_000_000);
    let choice = &body["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["logprobs"].is_null());
    assert!(choice.get("token_ids").is_none() && body.get("prompt_token_ids").is_none());
    // "user: say H" in bytes; six tokens and the end token.
    assert_eq!(
        body["usage"],
        json!({
            "prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        })
    );
}

#[tokio::test]
async fn response_headers_name_session_turn_and_adapter() {
    let server = Server::start().await;
    let answer = server
        .chat_with("H", json!({"session_id": "my session", "user": "ann"}))
        .await;
    let body = answer.ok();
    assert_eq!(answer.header("x-clawhost-session"), "my session");
    assert_eq!(body["session_id"], "my session");
    let digest = body["system_fingerprint"].as_str().unwrap();
    assert_eq!(
        answer.header("x-clawhost-adapter"),
        format!("0:{}", &digest[..12])
    );
    let turn = server.turn(answer.turn());
    assert_eq!(turn.state, TurnState::Complete);
    assert_eq!(turn.response_id, body["id"].as_str().unwrap());
    assert_eq!(turn.adapter_digest, digest);
    let session = server.journal.session(&turn.session).unwrap().unwrap();
    assert_eq!(session.user.as_deref(), Some("ann"));
}

#[tokio::test]
async fn recorded_turn_matches_sampled_tokens_and_response() {
    let server = Server::start().await;
    let answer = server
        .chat_with("H", json!({"return_token_ids": true, "logprobs": true, "top_logprobs": 2, "temperature": 0.7, "seed": 5}))
        .await;
    let body = answer.ok();
    let turn = server.turn(answer.turn());
    let reply = turn.completion.unwrap();
    assert_eq!(json!(turn.prompt_ids), body["prompt_token_ids"]);
    assert_eq!(json!(reply.token_ids), body["choices"][0]["token_ids"]);
    assert_eq!(json!(reply.reply), body["choices"][0]["message"]);
    assert_eq!(reply.finish, Finish::Stop);
    assert_eq!(turn.temperature, 0.7);
    assert_eq!(turn.sampling.seeds, [5]);
    let entries = body["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    assert_eq!(entries.len(), reply.token_ids.len());
    assert_eq!(reply.logprobs.len(), reply.token_ids.len());
    assert_eq!(reply.full_logprobs.len(), reply.token_ids.len());
    assert_eq!(entries[0]["token"], "Hello");
    assert_eq!(entries[0]["bytes"], json!("Hello".as_bytes()));
    assert_eq!(entries[2]["bytes"], json!([0xc3]));
    for entry in entries {
        let logprob = entry["logprob"].as_f64().unwrap();
        assert!((-0.01..=0.0).contains(&logprob), "{entry}");
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!(top[0]["token"], entry["token"]);
        assert!(top[1]["logprob"].as_f64().unwrap() < logprob);
    }
}

#[tokio::test]
async fn recorded_temperature_belongs_to_the_recorded_logprobs() {
    let server = Server::start().await;
    let model = server.engine.model();
    // Greedy replies (also at very low temperature) are recorded with logprobs at temperature 1.
    for (requested, expected) in [(0.0, 1.0), (0.0005, 1.0), (0.7, 0.7)] {
        let extra = json!({"temperature": requested, "max_tokens": 8, "seed": 3});
        let answer = server.chat_with("?", extra).await;
        answer.ok();
        let turn = server.turn(answer.turn());
        assert_eq!(turn.temperature, expected, "requested {requested}");
        assert_eq!(turn.sampling.params.temperature, requested as f32);
        let reply = turn.completion.unwrap();
        let tokens = [&turn.prompt_ids[..], &reply.token_ids].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: turn.prompt_ids.len(),
            temperature: turn.temperature,
            candidates: clawhost_engine::Candidates::None,
        };
        let scored = model.score(None, &[sequence]).unwrap();
        for (recorded, computed) in reply.full_logprobs.iter().zip(&scored[0].logprobs) {
            assert!((recorded - computed).abs() < 1e-3, "requested {requested}");
        }
        // Far from certain, so that logprobs of another temperature would differ.
        assert!(reply.full_logprobs.iter().any(|lp| *lp < -0.5));
    }
}

#[tokio::test]
async fn random_seed_is_recorded_and_reproduces_the_reply() {
    let server = Server::start().await;
    // Nothing follows `u`, so the reply is random.
    let extra = json!({"temperature": 1, "max_tokens": 12});
    let first = server.chat_with("u", extra.clone()).await;
    let recorded = server.turn(first.turn());
    let mut again = extra;
    again["seed"] = recorded.sampling.seeds[0].cast_signed().into();
    let second = server.chat_with("u", again.clone()).await;
    assert_eq!(content(&first.ok()), content(&second.ok()));
    again["seed"] = 77.into();
    let third = server.chat_with("u", again).await;
    assert_ne!(content(&first.ok()), content(&third.ok()));
}

#[tokio::test]
async fn n_choices_are_recorded_as_turns_of_one_group() {
    let server = Server::start().await;
    let answer = server
        .chat_with(
            "u",
            json!({"n": 3, "temperature": 1, "max_tokens": 8, "seed": 1}),
        )
        .await;
    let body = answer.ok();
    let choices = body["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["finish_reason"], "length");
    }
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    assert_eq!(body["usage"]["completion_tokens"], 24);
    let turns: Vec<i64> = answer
        .header("x-clawhost-turn")
        .split(',')
        .map(|turn| turn.parse().unwrap())
        .collect();
    assert_eq!(turns.len(), 3);
    for (turn, choice) in turns.iter().zip(choices) {
        let recorded = server.turn(*turn);
        assert_eq!(json!(recorded.completion.unwrap().reply), choice["message"]);
        assert_eq!(recorded.group, server.turn(turns[0]).group);
    }
}

#[tokio::test]
async fn max_tokens_and_stop_strings_end_a_reply() {
    let server = Server::start().await;
    let body = server.chat_with("L", json!({"max_tokens": 3})).await.ok();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(content(&body), "la la la ");
    let body = server
        .chat_with("L", json!({"max_completion_tokens": 2, "max_tokens": 9}))
        .await
        .ok();
    assert_eq!(body["usage"]["completion_tokens"], 2);
    for stop in [json!("STOP"), json!(["never", "STOP"])] {
        let body = server.chat_with("S", json!({"stop": stop})).await.ok();
        assert_eq!(content(&body), "one ");
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn model_is_served_under_name_aliases_and_versions() {
    let server = Server::with(|options| options.server.model_aliases = vec!["gpt-4o".into()]).await;
    for model in [json!(null), json!(""), json!("tiny"), json!("gpt-4o")] {
        let body = server.chat_with("A", json!({"model": model})).await.ok();
        assert_eq!(body["model"], "tiny");
    }
    for model in ["tiny:0", "tiny:base"] {
        let body = server.chat_with("A", json!({"model": model})).await.ok();
        assert_eq!(body["model"], model);
    }
    let listed = server.get("/v1/models").await.ok();
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["tiny", "tiny:0"]);
    assert_eq!(server.get("/v1/models/tiny").await.ok()["object"], "model");
}

#[tokio::test]
async fn published_version_is_served_and_older_versions_can_be_requested() {
    let server = Server::start().await;
    let before = server.chat("A").await;
    let adapter = clawhost_model::Adapter::init(
        server.engine.model().config(),
        clawhost_model::LoraSpec::default(),
        3,
    );
    let served = server.engine.publish(4, Some(std::sync::Arc::new(adapter)));
    let after = server.chat("A").await;
    assert!(before.header("x-clawhost-adapter").starts_with("0:"));
    assert_eq!(
        after.header("x-clawhost-adapter"),
        format!("4:{}", &served.digest()[..12])
    );
    assert_eq!(after.ok()["system_fingerprint"], served.digest());
    assert_eq!(server.turn(after.turn()).adapter_version, 4);
    let named = server.chat_with("A", json!({"model": "tiny:0"})).await;
    assert_eq!(
        named.header("x-clawhost-adapter"),
        before.header("x-clawhost-adapter")
    );
    assert_eq!(
        server.get("/v1/models").await.ok()["data"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        server.get("/v1/adapters").await.ok()["active"]["version"],
        4
    );
}

/// Each full copy of the weights is as large as the base model, so fewer of them stay loaded than adapters.
#[tokio::test]
async fn full_weight_versions_keep_only_one_previous_version() {
    let server = Server::start().await;
    let mut weak = Vec::new();
    for version in 1..=3 {
        let mut model = clawhost_model::Model::clone(server.engine.model());
        for (_, values) in model.parameters_mut() {
            values.iter_mut().for_each(|v| *v *= 1.01);
        }
        let model = std::sync::Arc::new(model);
        weak.push(std::sync::Arc::downgrade(&model));
        server.engine.publish(version, Some(model));
        let answer = server.chat("A").await;
        assert_eq!(server.turn(answer.turn()).adapter_version, version);
    }
    let named = server.chat_with("A", json!({"model": "tiny:2"})).await;
    assert_eq!(server.turn(named.turn()).adapter_version, 2);
    let unloaded = server.chat_with("A", json!({"model": "tiny:1"})).await;
    assert_eq!(unloaded.status, 404);
    let alive: Vec<bool> = weak.iter().map(|one| one.upgrade().is_some()).collect();
    assert_eq!(alive, [false, true, true]);
}

#[tokio::test]
async fn developer_messages_and_text_parts_are_rendered() {
    let server = Server::start().await;
    let messages = json!([
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "H"}]},
    ]);
    let answer = server
        .chat_with("", json!({"messages": messages, "return_token_ids": true}))
        .await;
    let body = answer.ok();
    let prompt: Vec<u8> = body["prompt_token_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(prompt).unwrap(), "system: d\nuser: a\nH");
    assert_eq!(content(&body), "Hello, wörld!");
}

#[tokio::test]
async fn template_variables_are_passed_to_the_template() {
    let server = Server::start().await;
    let body = server
        .chat_with("x", json!({"chat_template_kwargs": {"ending": "B"}}))
        .await
        .ok();
    assert_eq!(content(&body), "no");
}

#[tokio::test]
async fn concurrent_requests_do_not_mix() {
    let server = Server::start().await;
    let (first, second) = tokio::join!(
        server.chat_with("A", json!({"session_id": "same"})),
        server.chat_with("B", json!({"session_id": "same"})),
    );
    assert_eq!(content(&first.ok()), "yes");
    assert_eq!(content(&second.ok()), "no");
    let turns = server.turns("same");
    assert_eq!(turns.len(), 2);
    assert!(turns.iter().all(|turn| turn.state == TurnState::Complete));
}

#[tokio::test]
async fn reasoning_is_separate_from_content() {
    let server = Server::start().await;
    let body = server.chat("R").await.ok();
    let message = &body["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Two and two.");
    assert_eq!(message["content"], "It is 4.");
    let details = &body["usage"]["completion_tokens_details"];
    // The closing tag counts as reasoning, the opening one does not.
    assert_eq!(details["reasoning_tokens"], 3);
}
