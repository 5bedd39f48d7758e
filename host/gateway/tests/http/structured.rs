//! Structured output: a randomly sampling model always produces the requested format.

use serde_json::{Value, json};

use crate::server::Server;
use crate::streaming::{Streamed, read};

/// Random sampling with another seed each time.
fn random_request(seed: u64, extra: Value) -> Value {
    let mut body = json!({"temperature": 1, "seed": seed, "max_tokens": 4000});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn json_schema_format(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}})
}

fn person() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "$defs": {"tag": {"enum": ["rot", "grün", "🦀"]}},
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 3},
        },
    })
}

fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 5);
    assert!((0..=130).contains(&value["age"].as_i64().unwrap()));
    let tags = value["tags"].as_array().unwrap();
    assert!((1..=3).contains(&tags.len()));
    let known = json!(["rot", "grün", "🦀"]);
    assert!(
        tags.iter()
            .all(|tag| known.as_array().unwrap().contains(tag))
    );
}

#[tokio::test]
async fn schema_is_enforced_streamed_or_not_and_per_choice() {
    let server = Server::start().await;
    let mut texts = std::collections::HashSet::new();
    for seed in 0..4 {
        let mut extra = random_request(seed, json_schema_format(&person()));
        extra["n"] = 2.into();
        let body = server.chat_with("?", extra.clone()).await.ok();
        for choice in body["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "stop");
            let text = choice["message"]["content"].as_str().unwrap();
            check_person(text);
            texts.insert(text.to_owned());
        }
        let streamed = Streamed::of(&read(server.stream("?", extra).await).await);
        assert_eq!(streamed.content, body["choices"][0]["message"]["content"]);
    }
    assert!(texts.len() > 4, "chance decides what the form leaves open");
}

#[tokio::test]
async fn json_object_is_valid_or_a_valid_prefix_if_truncated() {
    let server = Server::start().await;
    let object = json!({"response_format": {"type": "json_object"}, "max_tokens": 6});
    for seed in 0..8 {
        let body = server
            .chat_with("?", random_request(seed, object.clone()))
            .await
            .ok();
        let choice = &body["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(text.starts_with('{'), "{text}");
        match choice["finish_reason"].as_str().unwrap() {
            "stop" => assert!(serde_json::from_str::<Value>(text).unwrap().is_object()),
            "length" => assert_eq!(body["usage"]["completion_tokens"], 6),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn stop_string_ends_structured_output() {
    let server = Server::start().await;
    let schema = json!({"type": "array", "items": {"const": 7}, "minItems": 5, "maxItems": 5});
    let mut extra = random_request(1, json_schema_format(&schema));
    extra["stop"] = json!([","]);
    let body = server.chat_with("?", extra).await.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!(text.split_whitespace().collect::<String>(), "[7");
}

#[tokio::test]
async fn token_bitmask_affects_only_the_sampling_logprob() {
    let server = Server::start().await;
    let schema = json!({"const": "ab"});
    let answer = server
        .chat_with("?", random_request(3, json_schema_format(&schema)))
        .await;
    answer.ok();
    let turn = server.turn(answer.turn());
    assert_eq!(
        json!(turn.sampling)["constraint"]["answer"]["json_schema"],
        schema
    );
    let reply = turn.completion.unwrap();
    // The vocabulary has only single-byte tokens for it, so every token is forced.
    assert_eq!(reply.token_ids.len(), 5);
    assert!(reply.logprobs.iter().all(|logprob| *logprob == 0.0));
    assert!(reply.full_logprobs.iter().all(|logprob| *logprob < -1.0));
    assert_eq!(reply.forced, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn forced_tokens_are_recorded_and_absent_without_constraint() {
    let server = Server::start().await;
    let schema = json!({"enum": ["left", "life"]});
    let answer = server
        .chat_with("?", random_request(3, json_schema_format(&schema)))
        .await;
    answer.ok();
    let reply = server.turn(answer.turn()).completion.unwrap();
    // `"l`, then `e` or `i`, and the forced rest.
    assert_eq!(reply.token_ids.len(), 7);
    assert_eq!(reply.forced, [0, 1, 3, 4, 5, 6]);
    assert!(reply.logprobs[2] < 0.0);
    let explanation = server
        .get(&format!("/v1/turns/{}/explain", answer.turn()))
        .await
        .ok();
    assert_eq!(explanation["forced_tokens"], 6);

    let tool = json!({"type": "function", "function": {"name": "wait", "parameters": {"additionalProperties": false}}});
    let call = server
        .chat_with(
            "?",
            random_request(4, json!({"tools": [tool], "tool_choice": "required"})),
        )
        .await;
    assert_eq!(call.ok()["choices"][0]["finish_reason"], "tool_calls");
    let reply = server.turn(call.turn()).completion.unwrap();
    assert!(!reply.forced.is_empty());
    for (place, logprob) in (0u32..).zip(&reply.logprobs) {
        assert!(!reply.forced.contains(&place) || *logprob == 0.0);
    }

    for extra in [
        json!({}),
        json!({"temperature": 1, "seed": 4, "max_tokens": 6}),
    ] {
        let free = server.chat_with("H", extra).await;
        free.ok();
        let reply = server.turn(free.turn()).completion.unwrap();
        assert_eq!(reply.forced, [0u32; 0]);
    }
}

#[tokio::test]
async fn structured_output_begins_after_reasoning() {
    let server = Server::start().await;
    // The template variable ends the prompt inside a reasoning block.
    let mut extra = random_request(5, json_schema_format(&json!({"enum": ["left", "right"]})));
    extra["chat_template_kwargs"] = json!({"ending": "<think>\n"});
    extra["max_tokens"] = 40.into();
    let body = server.chat_with("?", extra).await.ok();
    let choice = &body["choices"][0];
    let message = &choice["message"];
    let content = message["content"].as_str().unwrap();
    // Random reasoning never ends, so there is no content yet.
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(content, "", "{message}");
    let thought = message["reasoning_content"].as_str().unwrap();
    assert!(!thought.is_empty() && !thought.starts_with('"'));
}

fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    json!([
        tool(
            "look",
            json!({"type": "object", "additionalProperties": false, "required": ["where"],
                            "properties": {"where": {"enum": ["here", "there"]}}})
        ),
        tool(
            "wait",
            json!({"type": "object", "additionalProperties": false, "required": ["seconds"],
                            "properties": {"seconds": {"type": "integer", "minimum": 1, "maximum": 60}}})
        ),
    ])
}

fn check_call(call: &Value) {
    let function = &call["function"];
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    match function["name"].as_str().unwrap() {
        "look" => assert!(["here", "there"].contains(&arguments["where"].as_str().unwrap())),
        "wait" => assert!((1..=60).contains(&arguments["seconds"].as_i64().unwrap())),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn required_tool_call_has_valid_arguments() {
    let server = Server::start().await;
    for seed in 0..4 {
        for (choice, parallel) in [
            (json!("required"), true),
            (json!("required"), false),
            (
                json!({"type": "function", "function": {"name": "wait"}}),
                true,
            ),
        ] {
            let extra = random_request(
                seed,
                json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": parallel}),
            );
            let body = server.chat_with("?", extra.clone()).await.ok();
            let reply = &body["choices"][0];
            assert_eq!(reply["finish_reason"], "tool_calls", "{body}");
            assert!(reply["message"]["content"].is_null());
            let calls = reply["message"]["tool_calls"].as_array().unwrap();
            calls.iter().for_each(check_call);
            if choice.is_object() || !parallel {
                assert_eq!(calls.len(), 1);
            }
            if choice.is_object() {
                assert_eq!(calls[0]["function"]["name"], "wait");
            }
            let streamed = Streamed::of(&read(server.stream("?", extra).await).await);
            assert_eq!(streamed.calls.len(), calls.len());
            assert_eq!(streamed.calls[0].1, calls[0]["function"]["arguments"]);
        }
    }
}

#[tokio::test]
async fn reply_is_either_formatted_text_or_a_tool_call() {
    let server = Server::start().await;
    let (mut called, mut answered) = (0, 0);
    for seed in 0..24 {
        let mut extra = random_request(seed, json_schema_format(&json!({"enum": [1, 2]})));
        extra["tools"] = tools();
        let body = server.chat_with("?", extra).await.ok();
        let message = &body["choices"][0]["message"];
        match message["tool_calls"].as_array() {
            Some(calls) => {
                calls.iter().for_each(check_call);
                called += 1;
            }
            None => {
                assert!(["1", "2"].contains(&message["content"].as_str().unwrap()));
                answered += 1;
            }
        }
    }
    assert!(called > 0 && answered > 0, "{called} {answered}");
}

#[tokio::test]
async fn vllm_structured_output_fields_are_supported() {
    let server = Server::start().await;
    for extra in [
        json!({"guided_choice": ["yes", "no"]}),
        json!({"guided_regex": "yes|no"}),
        json!({"structured_outputs": {"choice": ["yes", "no"]}}),
        json!({"structured_outputs": {"regex": "(yes|no)"}}),
    ] {
        let body = server.chat_with("?", random_request(2, extra)).await.ok();
        let text = body["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(["yes", "no"].contains(&text), "{text}");
    }
    let extra = random_request(2, json!({"guided_json": person().to_string()}));
    let body = server.chat_with("?", extra).await.ok();
    check_person(body["choices"][0]["message"]["content"].as_str().unwrap());
}

#[tokio::test]
async fn unenforceable_schemas_are_rejected_by_position() {
    let server = Server::start().await;
    let deep = json!({"type": "object", "properties": {"a": {"items": {"if": {}}}}});
    for (extra, param) in [
        (
            json_schema_format(&deep),
            "response_format.json_schema.schema.properties.a.items.if",
        ),
        (
            json_schema_format(&json!({"type": "string", "pattern": "("})),
            "response_format",
        ),
        (
            json_schema_format(&json!({"$ref": "#/$defs/x"})),
            "response_format.json_schema.schema.$ref",
        ),
        (json!({"guided_regex": "["}), "response_format"),
        (
            json!({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
                "parameters": {"type": "object", "properties": {"a": {"uniqueItems": true}}}}}]}),
            "tools[0]",
        ),
    ] {
        let answer = server.chat_with("?", extra).await;
        answer.error(400);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.text);
    }
    assert!(
        server.journal.sessions(10).unwrap().is_empty(),
        "a refused request leaves no record"
    );
}

#[tokio::test]
async fn seed_reproduces_the_reply_in_any_batch() {
    let server = Server::start().await;
    let request = json!({"temperature": 1, "seed": 11, "n": 3, "max_tokens": 24, "top_p": 0.95, "return_token_ids": true});
    let ids = |body: Value| -> Vec<Value> {
        let choices = body["choices"].as_array().unwrap();
        choices
            .iter()
            .map(|choice| choice["token_ids"].clone())
            .collect()
    };
    let alone = ids(server.chat_with("?", request.clone()).await.ok());
    assert_ne!(alone[0], alone[1]);
    let crowd = (0..20).map(|i| {
        let extra = json!({"temperature": 1, "seed": 100 + i, "max_tokens": 30 + i, "top_k": i});
        server.chat_with("? crowd", extra)
    });
    let (again, crowd) = tokio::join!(
        server.chat_with("?", request.clone()),
        futures_util::future::join_all(crowd)
    );
    crowd.iter().for_each(|answer| drop(answer.ok()));
    assert_eq!(ids(again.ok()), alone);
}
