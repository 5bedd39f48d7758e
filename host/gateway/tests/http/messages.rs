//! Anthropic's messages API: formats, event order, errors, cancellation, and recorded turns.

use clawhost_chat::Message;
use clawhost_gateway::{ApiKey, RateLimit, Scope};
use clawhost_journal::TurnState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Connection, Server, chat_body, head};

const MESSAGES: &str = "/v1/messages";

/// A request whose only message is `text`.
fn body(text: &str, extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "max_tokens": 100, "temperature": 0,
                          "messages": [{"role": "user", "content": text}]});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    let tool = |name: &str| json!({"name": name, "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}});
    json!([tool("read"), tool("stat")])
}

async fn send_request(server: &Server, text: &str, extra: Value) -> ApiResponse {
    server.post(MESSAGES, &body(text, extra)).await
}

/// The events of a stream: name and data.
async fn stream(server: &Server, text: &str, mut extra: Value) -> Vec<(String, Value)> {
    extra["stream"] = true.into();
    let answer = send_request(server, text, extra).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.header("content-type"), "text/event-stream");
    events(&answer.text)
}

fn events(text: &str) -> Vec<(String, Value)> {
    let line = |event: &str, name: &str| {
        event
            .lines()
            .find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    text.split("\n\n")
        .filter(|event| !event.is_empty())
        .map(|event| {
            let name = line(event, "event: ").expect("each event has a name");
            let data: Value = serde_json::from_str(&line(event, "data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name.as_str());
            (name, data)
        })
        .collect()
}

/// Assembles the message from the events like the SDKs.
fn assembled(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut json = String::new();
    for (name, data) in events {
        match name.as_str() {
            "message_start" => {
                assert!(message.is_null());
                message = data["message"].clone();
            }
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(data["index"], content.len());
                content.push(data["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(data["index"], content.len() - 1);
                let block = content.last_mut().unwrap();
                let delta = &data["delta"];
                let append = |block: &mut Value, field: &str| {
                    let all = format!(
                        "{}{}",
                        block[field].as_str().unwrap(),
                        delta[field].as_str().unwrap()
                    );
                    block[field] = all.into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append(block, "text"),
                    "thinking_delta" => append(block, "thinking"),
                    "signature_delta" => append(block, "signature"),
                    "input_json_delta" => {
                        json.push_str(delta["partial_json"].as_str().unwrap());
                        block["input"] = serde_json::from_str(&json).unwrap_or(json!({}));
                    }
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let content = message["content"].as_array().unwrap();
                assert_eq!(data["index"], content.len() - 1);
            }
            "message_delta" => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            "message_stop" | "ping" => {}
            other => panic!("{other}: {data}"),
        }
    }
    message
}

#[tokio::test]
async fn response_has_anthropic_format() {
    let server = Server::start().await;
    let answer = send_request(&server, "say H", json!({})).await;
    let message = answer.ok();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    let mut rest = message.clone();
    rest.as_object_mut().unwrap().shift_remove("id");
    assert_eq!(
        rest,
        json!({
            "type": "message", "role": "assistant", "model": "tiny",
            "content": [{"type": "text", "text": "Hello, wörld!"}],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 11, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                      "output_tokens": 7},
        })
    );
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    let turn = server.turn(answer.turn());
    assert_eq!(turn.state, TurnState::Complete);
    assert_eq!(turn.response_id, message["id"].as_str().unwrap());
    assert_eq!(answer.header("x-clawhost-session"), turn.session.0);
    assert!(answer.header("x-clawhost-adapter").starts_with("0:"));
}

#[tokio::test]
async fn stop_reason_is_reported() {
    let server = Server::start().await;
    let rows = [
        ("H", json!({}), "end_turn", Value::Null),
        ("H", json!({"max_tokens": 2}), "max_tokens", Value::Null),
        (
            "S",
            json!({"stop_sequences": ["xyz", "STOP"]}),
            "stop_sequence",
            json!("STOP"),
        ),
        ("S", json!({"stop_sequences": []}), "end_turn", Value::Null),
        ("T", json!({"tools": tools()}), "tool_use", Value::Null),
    ];
    for (text, extra, reason, sequence) in rows {
        let full = send_request(&server, text, extra.clone()).await.ok();
        assert_eq!(full["stop_reason"], reason, "{extra}");
        assert_eq!(full["stop_sequence"], sequence, "{extra}");
        let streamed = assembled(&stream(&server, text, extra).await);
        assert_eq!(streamed["stop_reason"], reason);
        assert_eq!(streamed["stop_sequence"], sequence);
    }
}

#[tokio::test]
async fn events_have_anthropic_order() {
    let server = Server::start().await;
    let events = stream(&server, "R", json!({})).await;
    let mut names: Vec<String> = events
        .iter()
        .map(|(name, data)| match data["delta"]["type"].as_str() {
            Some(kind) => format!("{name}:{kind}"),
            None => name.clone(),
        })
        .collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta:thinking_delta",
            "content_block_delta:signature_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta:text_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let start = &events[0].1["message"];
    assert_eq!(start["content"], json!([]));
    assert!(start["stop_reason"].is_null());
    assert_eq!(start["usage"]["input_tokens"], 7);
}

#[tokio::test]
async fn stream_equals_the_non_streaming_response() {
    let server = Server::start().await;
    for (text, extra) in [
        ("H", json!({})),
        ("R", json!({})),
        ("X", json!({})),
        ("T", json!({"tools": tools()})),
    ] {
        let mut full = send_request(&server, text, extra.clone()).await.ok();
        let mut streamed = assembled(&stream(&server, text, extra).await);
        for message in [&mut full, &mut streamed] {
            // Ids differ, and the second request hits the prefix cache.
            message["id"] = Value::Null;
            message["usage"] = message["usage"]["output_tokens"].clone();
            for block in message["content"].as_array_mut().unwrap() {
                if let Some(id) = block.get_mut("id") {
                    assert!(id.as_str().unwrap().starts_with("toolu_"));
                    *id = Value::Null;
                }
            }
        }
        assert_eq!(full, streamed, "{text}");
    }
}

#[tokio::test]
async fn tool_calls_and_reasoning_are_content_blocks() {
    let server = Server::start().await;
    let message = send_request(&server, "T", json!({"tools": tools()}))
        .await
        .ok();
    let content = message["content"].as_array().unwrap();
    assert_eq!(content[0], json!({"type": "text", "text": "I look."}));
    assert_eq!(content[1]["type"], "tool_use");
    assert_eq!(content[1]["name"], "read");
    assert_eq!(content[1]["input"], json!({"path": "a.txt"}));
    assert_eq!(content[2]["input"], json!({}));
    let one = json!({"tools": tools(), "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let message = send_request(&server, "T", one).await.ok();
    assert_eq!(message["content"].as_array().unwrap().len(), 2);
    let none = json!({"tools": tools(), "tool_choice": {"type": "none"}});
    let message = send_request(&server, "T", none).await.ok();
    assert_eq!(message["stop_reason"], "end_turn");
    let message = send_request(&server, "R", json!({})).await.ok();
    let thought = &message["content"][0];
    assert_eq!(thought["thinking"], "Two and two.");
    assert!(!thought["signature"].as_str().unwrap().is_empty());
    assert_eq!(message["content"][1]["text"], "It is 4.");
}

#[tokio::test]
async fn turns_are_recorded_like_those_of_chat_completions() {
    let server = Server::start().await;
    let chat = server
        .chat_with("T", json!({"tools": [
            {"type": "function", "function": {"name": "read", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "stat", "description": "d", "parameters": {"type": "object"}}},
        ]}))
        .await;
    chat.ok();
    let answer = send_request(
        &server,
        "T",
        json!({"tools": tools(), "metadata": {"user_id": "ann"}}),
    )
    .await;
    answer.ok();
    let (one, other) = (server.turn(chat.turn()), server.turn(answer.turn()));
    assert_eq!(one.messages, other.messages);
    assert_eq!(one.tools, other.tools);
    assert_eq!(one.prompt_ids, other.prompt_ids);
    let (one, other) = (one.completion.unwrap(), other.completion.unwrap());
    assert_eq!(one.token_ids, other.token_ids);
    assert_eq!(one.reply.content, other.reply.content);
    assert_eq!(
        one.reply.tool_calls[0].function,
        other.reply.tool_calls[0].function
    );
    let session = server
        .journal
        .session(&server.turn(answer.turn()).session)
        .unwrap();
    assert_eq!(session.unwrap().user.as_deref(), Some("ann"));
}

#[tokio::test]
async fn session_continues_across_dialects() {
    let server = Server::start().await;
    let first = send_request(&server, "T", json!({"tools": tools()})).await;
    let content = first.ok()["content"].clone();
    let results = json!([
        {"type": "tool_result", "tool_use_id": content[1]["id"], "content": "the text H"},
        {"type": "tool_result", "tool_use_id": content[2]["id"], "content": [{"type": "text", "text": "42 A"}]},
    ]);
    let messages = json!([
        {"role": "user", "content": "T"}, {"role": "assistant", "content": content}, {"role": "user", "content": results},
    ]);
    let second = send_request(&server, "", json!({"tools": tools(), "messages": messages})).await;
    assert_eq!(
        second.ok()["content"],
        json!([{"type": "text", "text": "yes"}])
    );
    let session = first.header("x-clawhost-session");
    assert_eq!(second.header("x-clawhost-session"), session);
    let next = server.turn(first.turn()).next_state.unwrap();
    assert_eq!(
        json!(next[0]),
        json!({"role": "tool", "content": "the text H",
                               "tool_call_id": first.ok()["content"][1]["id"]})
    );
    // The same conversation continues in the other dialect.
    let recorded = server.turn(second.turn());
    let mut messages = recorded.messages;
    messages.push(Message::Assistant(recorded.completion.unwrap().reply));
    messages.push(Message::user("thanks B"));
    let third = server
        .post(
            "/v1/chat/completions",
            &json!({"messages": messages, "temperature": 0}),
        )
        .await;
    third.ok();
    assert_eq!(third.header("x-clawhost-session"), session);
    let explained = server
        .get(&format!("/v1/sessions/{session}/explain"))
        .await
        .ok();
    let turns = explained["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 3);
    for (turn, decision) in turns.iter().zip(["new", "continue", "continue"]) {
        assert_eq!(turn["matched"]["decision"], decision, "{turn}");
    }
}

#[tokio::test]
async fn counting_tokens_records_nothing() {
    let server = Server::start().await;
    let mut counted = body("say H", json!({"tools": tools(), "system": "be brief"}));
    counted.as_object_mut().unwrap().shift_remove("max_tokens");
    let answer = server.post("/v1/messages/count_tokens", &counted).await;
    let tokens = answer.ok()["input_tokens"].clone();
    assert_eq!(server.journal.counts().unwrap().sessions, 0);
    let full = server
        .post(
            MESSAGES,
            &body("say H", json!({"tools": tools(), "system": "be brief"})),
        )
        .await
        .ok();
    assert_eq!(full["usage"]["input_tokens"], tokens);
    counted["messages"] = json!([]);
    let answer = server.post("/v1/messages/count_tokens", &counted).await;
    refused(&answer, 400, "invalid_request_error");
}

/// Asserts that this is an error in Anthropic's format.
fn refused(answer: &ApiResponse, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["type"], "error", "{body}");
    assert_eq!(body["error"]["type"], kind, "{body}");
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    assert_eq!(body["request_id"], answer.header("request-id"));
    assert_eq!(body["error"].as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn invalid_requests_get_anthropic_errors_and_keep_the_connection() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let good = body("A", json!({})).to_string();
    let with = |extra: Value| body("A", extra).to_string();
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]);
    let prefill = json!([{"role": "assistant", "content": "ye"}]);
    let rows = [
        (
            "{\"messages\": [".to_owned(),
            400,
            "invalid_request_error",
            "JSON",
        ),
        (String::new(), 400, "invalid_request_error", "empty"),
        ("[]".to_owned(), 400, "invalid_request_error", "object"),
        ("{}".to_owned(), 400, "invalid_request_error", "messages"),
        (
            with(json!({"max_tokens": null})),
            400,
            "invalid_request_error",
            "max_tokens",
        ),
        (
            with(json!({"max_tokens": 0})),
            400,
            "invalid_request_error",
            "max_tokens",
        ),
        (
            with(json!({"model": null})),
            400,
            "invalid_request_error",
            "model",
        ),
        (
            with(json!({"model": "claude-x"})),
            404,
            "not_found_error",
            "claude-x",
        ),
        (
            with(json!({"messages": []})),
            400,
            "invalid_request_error",
            "empty",
        ),
        (
            with(json!({"messages": [{"role": "wizard", "content": "x"}]})),
            400,
            "invalid_request_error",
            "wizard",
        ),
        (
            with(json!({"messages": image})),
            400,
            "invalid_request_error",
            "text only",
        ),
        (
            with(json!({"messages": prefill})),
            400,
            "invalid_request_error",
            "must follow another message",
        ),
        (
            with(json!({"tools": [{"name": "f"}]})),
            400,
            "invalid_request_error",
            "tools[0].input_schema",
        ),
        (
            with(json!({"tools": [{"name": "f", "input_schema": {"type": "array"}}]})),
            400,
            "invalid_request_error",
            "must be `object`",
        ),
        (
            with(json!({"tools": [{"type": "bash_20250124", "name": "bash"}]})),
            400,
            "invalid_request_error",
            "bash",
        ),
        (
            with(json!({"tool_choice": {"type": "some"}})),
            400,
            "invalid_request_error",
            "tool_choice",
        ),
        (
            with(json!({"tool_choice": {"type": "tool"}})),
            400,
            "invalid_request_error",
            "tool_choice.name",
        ),
        (
            with(json!({"temperature": 1.5})),
            400,
            "invalid_request_error",
            "temperature",
        ),
        (
            with(json!({"top_p": 0})),
            400,
            "invalid_request_error",
            "top_p",
        ),
        (
            with(json!({"top_k": -1})),
            400,
            "invalid_request_error",
            "top_k",
        ),
        (
            with(json!({"stop_sequences": "x"})),
            400,
            "invalid_request_error",
            "stop_sequences",
        ),
        (
            with(json!({"stop_sequences": [""]})),
            400,
            "invalid_request_error",
            "stop",
        ),
        (
            with(json!({"thinking": {"type": "hard"}})),
            400,
            "invalid_request_error",
            "thinking.type",
        ),
        (
            with(json!({"mcp_servers": [{"url": "x"}]})),
            400,
            "invalid_request_error",
            "mcp_servers",
        ),
        (
            with(json!({"output_config": {"format": {"type": "xml"}}})),
            400,
            "invalid_request_error",
            "xml",
        ),
    ];
    for (body, status, kind, word) in rows {
        let (got, answer) = connection
            .send(&head("POST", MESSAGES), body.as_bytes())
            .await;
        assert_eq!(got, status, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["type"], "error", "{body}: {answer}");
        assert_eq!(answer["error"]["type"], kind, "{body}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{body}: {message}");
        let (again, answer) = connection
            .send(&head("POST", MESSAGES), good.as_bytes())
            .await;
        assert_eq!(again, 200, "after {body}: {answer}");
    }
    let (status, answer) = connection.send(&head("GET", MESSAGES), b"").await;
    assert_eq!(status, 405);
    assert!(answer.contains("invalid_request_error"), "{answer}");
    let (status, answer) = connection
        .send(&head("POST", "/v1/messages/batches"), b"{}")
        .await;
    assert_eq!(status, 404);
    assert!(answer.contains("not_found_error"), "{answer}");
}

#[tokio::test]
async fn admission_errors_have_anthropic_format() {
    let server = Server::with(|options| {
        let key = |name: &str, secret: &str, scope| ApiKey::new(name, secret, [scope]).unwrap();
        let rate = RateLimit {
            per_minute: 1,
            burst: 3,
        };
        options.keys = vec![
            key("ann", "key-of-ann", Scope::Chat).with_rate(rate),
            key("bob", "key-of-bob", Scope::Feedback),
        ];
        options.server.max_body_size = 10_000;
    })
    .await;
    let send = async |name: &str, value: &str, body: &Value| {
        let request = server.request(Method::POST, MESSAGES).json(body);
        let request = request
            .header(name, value)
            .header("anthropic-version", "2023-06-01");
        ApiResponse::read(request.send().await.unwrap()).await
    };
    let good = body("A", json!({}));
    refused(
        &send("x-api-key", "nobody", &good).await,
        401,
        "authentication_error",
    );
    refused(
        &send("x-api-key", "key-of-bob", &good).await,
        403,
        "permission_error",
    );
    send("x-api-key", "key-of-ann", &good).await.ok();
    send("authorization", "Bearer key-of-ann", &good).await.ok();
    let huge = body(&"x".repeat(20_000), json!({}));
    refused(
        &send("x-api-key", "key-of-ann", &huge).await,
        413,
        "request_too_large",
    );
    let answer = send("x-api-key", "key-of-ann", &good).await;
    refused(&answer, 429, "rate_limit_error");
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
}

#[tokio::test]
async fn context_overflow_is_reported() {
    let engine = clawhost_engine::EngineOptions {
        max_model_len: Some(40),
        ..Default::default()
    };
    let server = Server::on(
        clawhost_journal::Journal::in_memory().unwrap(),
        engine,
        |_| {},
    )
    .await;
    let answer = send_request(&server, &"x".repeat(100), json!({})).await;
    refused(&answer, 400, "invalid_request_error");
    assert!(answer.text.contains("106 tokens > 39 maximum"));
    let cut = send_request(&server, "L", json!({"max_tokens": 1000}))
        .await
        .ok();
    assert_eq!(cut["stop_reason"], "model_context_window_exceeded");
}

#[tokio::test]
async fn failure_in_a_stream_is_an_error_event() {
    let server = Server::start().await;
    let mut request = body("F", json!({"stream": true}));
    request["temperature"] = 0.into();
    let answer = server.post(MESSAGES, &request).await;
    let events = events(&answer.text);
    let (name, data) = events.last().unwrap();
    assert_eq!(name, "error");
    assert_eq!(data["error"]["type"], "api_error");
    assert_ne!(server.turn(answer.turn()).state, TurnState::Complete);
}

#[tokio::test]
async fn disconnect_cancels_and_records_the_partial_reply() {
    let server = Server::start().await;
    let request = body(
        "L",
        json!({"max_tokens": 60_000, "stream": true, "session_id": "gone"}),
    );
    let turn = server.disconnect(MESSAGES, &request).await;
    assert_eq!(turn.state, TurnState::Aborted);
    let partial = turn.completion.unwrap();
    assert!(partial.reply.text().starts_with("la la la "));
}

#[tokio::test]
async fn thinking_field_sets_the_template_variable() {
    let server = Server::start().await;
    let rows = [
        (json!({}), None),
        (json!({"thinking": {"type": "adaptive"}}), None),
        (json!({"thinking": {"type": "disabled"}}), Some(false)),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            Some(true),
        ),
    ];
    for (extra, thinks) in rows {
        let answer = send_request(&server, "A", extra.clone()).await;
        answer.ok();
        let kept = server.turn(answer.turn()).template;
        assert_eq!(
            kept.get("enable_thinking").and_then(Value::as_bool),
            thinks,
            "{extra}"
        );
    }
    // Reasoning in the history is kept as reasoning.
    let messages = json!([
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                          {"type": "text", "text": "4"}]},
        {"role": "user", "content": "A"},
    ]);
    let answer = send_request(&server, "", json!({"messages": messages})).await;
    answer.ok();
    let kept = server.turn(answer.turn()).messages;
    assert_eq!(json!(kept[1])["reasoning_content"], "hm");
}

#[tokio::test]
async fn feedback_accepts_message_ids() {
    let server = Server::start().await;
    let id = send_request(&server, "A", json!({})).await.ok()["id"].clone();
    let answer = server
        .post("/v1/feedback", &json!({"response_id": id, "score": 1}))
        .await;
    assert_eq!(answer.ok()["response_id"], id);
    let both = server
        .post("/v1/chat/completions", &chat_body("A", json!({})))
        .await;
    both.ok();
}
