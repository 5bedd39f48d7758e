//! OpenAI's Responses dialect: shapes, the order of events, what is continued and read back, errors, and what is recorded.

use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::TurnState;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, Connection, Server, head, until};

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

async fn ask(server: &Server, text: &str, extra: Value) -> Answer {
    server.post(RESPONSES, &body(text, extra)).await
}

/// The events of a stream, whose names and numbers must be right.
async fn stream(server: &Server, text: &str, mut extra: Value) -> Vec<Value> {
    extra["stream"] = true.into();
    let answer = ask(server, text, extra).await;
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
async fn a_reply_has_the_shape_of_a_response() {
    let server = Server::start().await;
    let extra =
        json!({"instructions": "be brief", "metadata": {"a": "b"}, "max_output_tokens": 50});
    let answer = ask(&server, "say H", extra).await;
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
    assert_eq!(
        turn.messages[0],
        json!({"role": "system", "content": "be brief"})
    );
}

#[tokio::test]
async fn thoughts_text_and_calls_are_items() {
    let server = Server::start().await;
    let response = ask(&server, "T", json!({"tools": tools()})).await.ok();
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
    let one = ask(
        &server,
        "T",
        json!({"tools": tools(), "parallel_tool_calls": false}),
    )
    .await
    .ok();
    assert_eq!(one["output"].as_array().unwrap().len(), 2);
    let response = ask(&server, "R", json!({})).await.ok();
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
async fn the_events_come_in_order_and_say_what_the_whole_reply_says() {
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
        let whole = ask(&server, text, extra.clone()).await.ok();
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
            .zip(whole["output"].as_array().unwrap())
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
            whole["usage"]["output_tokens"]
        );
    }
}

#[tokio::test]
async fn a_reply_that_was_cut_is_incomplete() {
    let server = Server::start().await;
    let response = ask(&server, "H", json!({"max_output_tokens": 2}))
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
async fn a_response_is_continued_from_the_journal() {
    let server = Server::start().await;
    let extra = json!({"tools": tools(), "instructions": "one"});
    let first = ask(&server, "T", extra).await;
    let (id, output) = (first.ok()["id"].clone(), first.ok()["output"].clone());
    let results = json!([
        {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "x"},
        {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "42 A"},
    ]);
    let extra = json!({"tools": tools(), "previous_response_id": id, "input": results, "instructions": "two"});
    let second = ask(&server, "", extra).await;
    assert_eq!(output_text(&second.ok()), "yes");
    assert_eq!(second.ok()["previous_response_id"], id);
    let session = first.header("x-clawhost-session");
    assert_eq!(second.header("x-clawhost-session"), session);
    let messages = server.turn(second.turn()).messages;
    let roles: Vec<&str> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    // Instructions hold for one response only.
    assert_eq!(messages[0]["content"], "two");
    // The same by sending everything.
    let mut input = vec![json!({"role": "user", "content": "T"})];
    input.extend(output.as_array().unwrap().clone());
    input.extend(results.as_array().unwrap().clone());
    let extra = json!({"tools": tools(), "input": input, "instructions": "two"});
    let again = ask(&server, "", extra).await;
    again.ok();
    assert_eq!(server.turn(again.turn()).messages, messages);
    assert_eq!(again.header("x-clawhost-session"), session);
}

#[tokio::test]
async fn a_response_is_read_back_as_it_was() {
    let server = Server::start().await;
    for (text, extra) in [
        ("R", json!({"metadata": {"a": "b"}})),
        ("T", json!({"tools": tools()})),
    ] {
        let mut told = ask(&server, text, extra).await.ok();
        let path = format!("{RESPONSES}/{}", told["id"].as_str().unwrap());
        let mut read = server.get(&path).await.ok();
        for response in [&mut told, &mut read] {
            let usage = response["usage"].as_object_mut().unwrap();
            usage.shift_remove("input_tokens_details");
            usage.shift_remove("output_tokens_details");
        }
        assert_eq!(told, read);
    }
    let hidden = ask(&server, "A", json!({"store": false})).await;
    let id = hidden.ok()["id"].clone();
    let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
    assert_eq!(server.get(&path).await.error(404), "response_not_found");
    let answer = ask(&server, "B", json!({"previous_response_id": id})).await;
    assert_eq!(answer.error(400), "previous_response_not_found");
    // It is recorded all the same.
    assert_eq!(server.turn(hidden.turn()).state, TurnState::Complete);
}

#[tokio::test]
async fn nobody_reads_or_continues_what_another_key_was_told() {
    let server = Server::with(|options| {
        let key = |name: &str, secret: &str| ApiKey::new(name, secret, [Scope::Chat]).unwrap();
        options.keys = vec![key("ann", "key-of-ann"), key("bob", "key-of-bob")];
    })
    .await;
    let send = async |key: &str, method: Method, path: &str, body: Value| {
        let request = server.request(method, path).bearer_auth(key).json(&body);
        Answer::of(request.send().await.unwrap()).await
    };
    let told = send("key-of-ann", Method::POST, RESPONSES, body("A", json!({})))
        .await
        .ok();
    let path = format!("{RESPONSES}/{}", told["id"].as_str().unwrap());
    send("key-of-ann", Method::GET, &path, json!({})).await.ok();
    send("key-of-bob", Method::GET, &path, json!({}))
        .await
        .error(404);
    let more = body("B", json!({"previous_response_id": told["id"]}));
    send("key-of-bob", Method::POST, RESPONSES, more.clone())
        .await
        .error(400);
    send("key-of-ann", Method::POST, RESPONSES, more).await.ok();
}

#[tokio::test]
async fn every_bad_request_is_refused_and_the_connection_goes_on() {
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
async fn tokens_are_counted_and_nothing_recorded() {
    let server = Server::start().await;
    let asked = body("say H", json!({"instructions": "be brief"}));
    let counted = server.post("/v1/responses/input_tokens", &asked).await.ok();
    assert_eq!(
        counted,
        json!({"object": "response.input_tokens", "input_tokens": 28})
    );
    assert_eq!(server.journal.counts().unwrap().sessions, 0);
}

#[tokio::test]
async fn a_failure_in_a_stream_is_told_and_recorded() {
    let server = Server::start().await;
    let answer = ask(&server, "F", json!({"stream": true})).await;
    let events = events(&answer.text);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert_eq!(output_text(&last["response"]), "so far so good");
    assert_ne!(server.ended(answer.turn()).await.state, TurnState::Complete);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_and_what_was_said_is_kept() {
    let server = Server::start().await;
    let request = body(
        "L",
        json!({"max_output_tokens": 60_000, "stream": true, "session_id": "gone"}),
    );
    let response = server
        .request(Method::POST, RESPONSES)
        .json(&request)
        .send()
        .await
        .unwrap();
    let mut stream = response.bytes_stream();
    let mut seen = String::new();
    while seen.matches("la ").count() < 3 {
        seen.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
    }
    drop(stream);
    until("the engine cancels", || {
        (server.engine.stats().cancelled == 1).then_some(())
    })
    .await;
    let turn = server.ended(server.turns("gone")[0].id.0).await;
    assert_eq!(turn.state, TurnState::Aborted);
    let read = server
        .get(&format!("{RESPONSES}/{}", turn.response_id))
        .await
        .ok();
    assert_eq!(read["status"], "incomplete");
    assert!(output_text(&read).starts_with("la la la "));
}
