//! OpenAI's Responses API: formats, event order, continuation, retrieval, errors, and recorded turns.

use clawhost_chat::{Message, Role};
use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::TurnState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Connection, Server, head};

const RESPONSES: &str = "/v1/responses";

/// A request whose only input is `text`.
fn body(text: &str, extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "input": text, "temperature": 0});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    let tool =
        |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    json!([tool("read"), tool("stat")])
}

async fn send_request(server: &Server, text: &str, extra: Value) -> ApiResponse {
    server.post(RESPONSES, &body(text, extra)).await
}

/// The events of a stream; checks their names and sequence numbers.
async fn stream(server: &Server, text: &str, mut extra: Value) -> Vec<Value> {
    extra["stream"] = true.into();
    let answer = send_request(server, text, extra).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let events = events(&answer.text);
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], index);
    }
    events
}

fn events(text: &str) -> Vec<Value> {
    let line = |event: &str, name: &str| {
        event
            .lines()
            .find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    text.split("\n\n")
        .filter(|event| !event.is_empty())
        .map(|event| {
            let data: Value = serde_json::from_str(&line(event, "data: ").unwrap()).unwrap();
            assert_eq!(data["type"], line(event, "event: ").unwrap());
            data
        })
        .collect()
}

fn output_text(response: &Value) -> String {
    response["output"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "message")
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn response_has_responses_format() {
    let server = Server::start().await;
    let extra =
        json!({"instructions": "be brief", "metadata": {"a": "b"}, "max_output_tokens": 50});
    let answer = send_request(&server, "say H", extra).await;
    let response = answer.ok();
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(response["object"], "response");
    assert_eq!(response["status"], "completed");
    assert_eq!(response["model"], "tiny");
    for field in ["error", "incomplete_details", "previous_response_id"] {
        assert!(response[field].is_null() && response.get(field).is_some());
    }
    assert_eq!(response["instructions"], "be brief");
    assert_eq!(response["metadata"], json!({"a": "b"}));
    assert_eq!(response["max_output_tokens"], 50);
    assert_eq!(response["tool_choice"], "auto");
    assert_eq!(response["parallel_tool_calls"], true);
    assert_eq!(response["temperature"], 0.0);
    let mut item = response["output"][0].clone();
    assert!(item["id"].as_str().unwrap().starts_with("msg_"));
    item.as_object_mut().unwrap().shift_remove("id");
    assert_eq!(
        item,
        json!({"type": "message", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "Hello, wörld!", "annotations": [], "logprobs": []},
        ]})
    );
    assert_eq!(
        response["usage"],
        json!({
            "input_tokens": 28, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 35,
        })
    );
    let turn = server.turn(answer.turn());
    assert_eq!(turn.response_id, response["id"].as_str().unwrap());
    assert_eq!(turn.messages[0], Message::system("be brief"));
}

#[tokio::test]
async fn reasoning_text_and_calls_are_output_items() {
    let server = Server::start().await;
    let response = send_request(&server, "T", json!({"tools": tools()}))
        .await
        .ok();
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<&str> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"]);
    assert_eq!(output[1]["name"], "read");
    assert_eq!(output[1]["arguments"], "{\"path\": \"a.txt\"}");
    assert!(output[1]["call_id"].as_str().unwrap().starts_with("call_"));
    assert_ne!(output[1]["id"], output[2]["id"]);
    let one = send_request(
        &server,
        "T",
        json!({"tools": tools(), "parallel_tool_calls": false}),
    )
    .await
    .ok();
    assert_eq!(one["output"].as_array().unwrap().len(), 2);
    let response = send_request(&server, "R", json!({})).await.ok();
    let thought = &response["output"][0];
    assert_eq!(thought["type"], "reasoning");
    assert_eq!(thought["summary"], json!([]));
    assert_eq!(
        thought["content"],
        json!([{"type": "reasoning_text", "text": "Two and two."}])
    );
    assert_eq!(output_text(&response), "It is 4.");
    assert!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
}

#[tokio::test]
async fn events_are_ordered_and_equal_the_non_streaming_response() {
    let server = Server::start().await;
    let events = stream(&server, "R", json!({})).await;
    let mut kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    assert_eq!(events[0]["response"]["status"], "in_progress");
    for (text, extra) in [
        ("H", json!({})),
        ("R", json!({})),
        ("T", json!({"tools": tools()})),
    ] {
        let full = send_request(&server, text, extra.clone()).await.ok();
        let events = stream(&server, text, extra).await;
        let last = &events.last().unwrap()["response"];
        assert_eq!(last["status"], "completed");
        let mut done = Vec::new();
        let mut written: Vec<String> = Vec::new();
        for event in &events {
            match event["type"].as_str().unwrap() {
                "response.output_item.added" => {
                    assert_eq!(event["output_index"], written.len());
                    written.push(String::new());
                }
                "response.output_text.delta"
                | "response.reasoning_text.delta"
                | "response.function_call_arguments.delta" => {
                    assert_eq!(event["output_index"], written.len() - 1);
                    written
                        .last_mut()
                        .unwrap()
                        .push_str(event["delta"].as_str().unwrap());
                }
                "response.output_item.done" => done.push(event["item"].clone()),
                _ => {}
            }
        }
        assert_eq!(last["output"], Value::Array(done.clone()));
        for ((item, other), written) in done
            .iter()
            .zip(full["output"].as_array().unwrap())
            .zip(&written)
        {
            let words = |item: &Value| {
                let part = item.pointer("/content/0/text").or(item.get("arguments"));
                part.and_then(Value::as_str).unwrap().to_owned()
            };
            assert_eq!(words(item), *written);
            assert_eq!(words(item), words(other));
            assert_eq!(item["type"], other["type"]);
        }
        assert_eq!(
            last["usage"]["output_tokens"],
            full["usage"]["output_tokens"]
        );
    }
}

#[tokio::test]
async fn truncated_reply_is_incomplete() {
    let server = Server::start().await;
    let response = send_request(&server, "H", json!({"max_output_tokens": 2}))
        .await
        .ok();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
    let events = stream(&server, "H", json!({"max_output_tokens": 2})).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["status"], "incomplete");
}

#[tokio::test]
async fn previous_response_id_continues_from_the_journal() {
    let server = Server::start().await;
    let extra = json!({"tools": tools(), "instructions": "one"});
    let first = send_request(&server, "T", extra).await;
    let (id, output) = (first.ok()["id"].clone(), first.ok()["output"].clone());
    let results = json!([
        {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "x"},
        {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "42 A"},
    ]);
    let extra = json!({"tools": tools(), "previous_response_id": id, "input": results, "instructions": "two"});
    let second = send_request(&server, "", extra).await;
    assert_eq!(output_text(&second.ok()), "yes");
    assert_eq!(second.ok()["previous_response_id"], id);
    let session = first.header("x-clawhost-session");
    assert_eq!(second.header("x-clawhost-session"), session);
    let messages = server.turn(second.turn()).messages;
    let roles: Vec<Role> = messages.iter().map(Message::role).collect();
    assert_eq!(
        roles,
        [
            Role::System,
            Role::User,
            Role::Assistant,
            Role::Tool,
            Role::Tool
        ]
    );
    // Instructions apply to a single response.
    assert_eq!(messages[0].text(), "two");
    // The same by sending the full conversation.
    let mut input = vec![json!({"role": "user", "content": "T"})];
    input.extend(output.as_array().unwrap().clone());
    input.extend(results.as_array().unwrap().clone());
    let extra = json!({"tools": tools(), "input": input, "instructions": "two"});
    let again = send_request(&server, "", extra).await;
    again.ok();
    assert_eq!(server.turn(again.turn()).messages, messages);
    assert_eq!(again.header("x-clawhost-session"), session);
}

#[tokio::test]
async fn response_can_be_retrieved() {
    let server = Server::start().await;
    for (text, extra) in [
        ("R", json!({"metadata": {"a": "b"}})),
        ("T", json!({"tools": tools()})),
    ] {
        let mut response = send_request(&server, text, extra).await.ok();
        let path = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
        let mut read = server.get(&path).await.ok();
        for response in [&mut response, &mut read] {
            let usage = response["usage"].as_object_mut().unwrap();
            usage.shift_remove("input_tokens_details");
            usage.shift_remove("output_tokens_details");
        }
        assert_eq!(response, read);
    }
    let hidden = send_request(&server, "A", json!({"store": false})).await;
    let id = hidden.ok()["id"].clone();
    let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
    assert_eq!(server.get(&path).await.error(404), "response_not_found");
    let answer = send_request(&server, "B", json!({"previous_response_id": id})).await;
    assert_eq!(answer.error(400), "previous_response_not_found");
    // It is recorded nevertheless.
    assert_eq!(server.turn(hidden.turn()).state, TurnState::Complete);
}

#[tokio::test]
async fn responses_of_other_keys_cannot_be_retrieved_or_continued() {
    let server = Server::with(|options| {
        let key = |name: &str, secret: &str| ApiKey::new(name, secret, [Scope::Chat]).unwrap();
        options.keys = vec![key("ann", "key-of-ann"), key("bob", "key-of-bob")];
    })
    .await;
    let send = async |key: &str, method: Method, path: &str, body: Value| {
        let request = server.request(method, path).bearer_auth(key).json(&body);
        ApiResponse::read(request.send().await.unwrap()).await
    };
    let response = send("key-of-ann", Method::POST, RESPONSES, body("A", json!({})))
        .await
        .ok();
    let path = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
    send("key-of-ann", Method::GET, &path, json!({})).await.ok();
    send("key-of-bob", Method::GET, &path, json!({}))
        .await
        .error(404);
    let more = body("B", json!({"previous_response_id": response["id"]}));
    send("key-of-bob", Method::POST, RESPONSES, more.clone())
        .await
        .error(400);
    send("key-of-ann", Method::POST, RESPONSES, more).await.ok();
}

#[tokio::test]
async fn invalid_requests_are_rejected_and_keep_the_connection() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let good = body("A", json!({})).to_string();
    let with = |extra: Value| body("A", extra).to_string();
    let rows = [
        ("{\"input\": [".to_owned(), "invalid_json", ""),
        ("{}".to_owned(), "missing_required_parameter", "input"),
        (with(json!({"input": []})), "invalid_value", "input"),
        (
            with(json!({"input": [{"role": "wizard", "content": "x"}]})),
            "invalid_value",
            "input[0].role",
        ),
        (
            with(json!({"input": "refuse me"})),
            "template_refused",
            "input",
        ),
        (
            with(json!({"tools": [{"type": "web_search"}]})),
            "unsupported_parameter",
            "tools[0].type",
        ),
        (
            with(json!({"tools": [{"type": "function"}]})),
            "missing_required_parameter",
            "tools[0].name",
        ),
        (
            with(
                json!({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}),
            ),
            "invalid_value",
            "tools[0].parameters.type",
        ),
        (
            with(json!({"tool_choice": "any"})),
            "invalid_value",
            "tool_choice",
        ),
        (
            with(json!({"tool_choice": {"type": "function", "name": "f"}})),
            "invalid_value",
            "tool_choice",
        ),
        (
            with(json!({"max_output_tokens": 0})),
            "invalid_value",
            "max_output_tokens",
        ),
        (
            with(json!({"text": {"format": {"type": "json_schema"}}})),
            "missing_required_parameter",
            "text.format.schema",
        ),
        (
            with(json!({"background": true})),
            "unsupported_parameter",
            "background",
        ),
        (
            with(json!({"conversation": "c"})),
            "unsupported_parameter",
            "conversation",
        ),
        (
            with(json!({"truncation": "always"})),
            "invalid_value",
            "truncation",
        ),
        (
            with(json!({"top_logprobs": 3})),
            "unsupported_parameter",
            "top_logprobs",
        ),
        (
            with(json!({"previous_response_id": "resp_x"})),
            "previous_response_not_found",
            "previous_response_id",
        ),
    ];
    for (body, code, param) in rows {
        let (status, answer) = connection
            .send(&head("POST", RESPONSES), body.as_bytes())
            .await;
        assert_eq!(status, 400, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"]["code"], code, "{body}: {answer}");
        assert_eq!(
            answer["error"]["param"].as_str().unwrap_or(""),
            param,
            "{body}: {answer}"
        );
        let (again, answer) = connection
            .send(&head("POST", RESPONSES), good.as_bytes())
            .await;
        assert_eq!(again, 200, "after {body}: {answer}");
    }
}

#[tokio::test]
async fn counting_tokens_records_nothing() {
    let server = Server::start().await;
    let request = body("say H", json!({"instructions": "be brief"}));
    let counted = server
        .post("/v1/responses/input_tokens", &request)
        .await
        .ok();
    assert_eq!(
        counted,
        json!({"object": "response.input_tokens", "input_tokens": 28})
    );
    assert_eq!(server.journal.counts().unwrap().sessions, 0);
}

#[tokio::test]
async fn failure_in_a_stream_is_reported_and_recorded() {
    let server = Server::start().await;
    let answer = send_request(&server, "F", json!({"stream": true})).await;
    let events = events(&answer.text);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert_eq!(output_text(&last["response"]), "so far so good");
    assert_ne!(server.ended(answer.turn()).await.state, TurnState::Complete);
}

#[tokio::test]
async fn disconnect_cancels_and_records_the_partial_reply() {
    let server = Server::start().await;
    let request = body(
        "L",
        json!({"max_output_tokens": 60_000, "stream": true, "session_id": "gone"}),
    );
    let turn = server.disconnect(RESPONSES, &request).await;
    assert_eq!(turn.state, TurnState::Aborted);
    let read = server
        .get(&format!("{RESPONSES}/{}", turn.response_id))
        .await
        .ok();
    assert_eq!(read["status"], "incomplete");
    assert!(output_text(&read).starts_with("la la la "));
}
