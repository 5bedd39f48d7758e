//! Tool calls are parsed from the generated text, streaming or not.

use serde_json::{Value, json};

use crate::server::Server;
use crate::streaming::{Streamed, read};

fn with_tools(extra: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let mut body = json!({"tools": [tool("read"), tool("stat")]});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn tool_calls_are_parsed_and_end_the_reply() {
    let server = Server::start().await;
    let answer = server.chat_with("T", with_tools(json!({}))).await;
    let body = answer.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I look.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        calls[0]["function"],
        json!({"name": "read", "arguments": "{\"path\": \"a.txt\"}"})
    );
    assert_eq!(
        calls[1]["function"],
        json!({"name": "stat", "arguments": "{}"})
    );
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let recorded = server.turn(answer.turn());
    assert_eq!(json!(recorded.completion.unwrap().reply), choice["message"]);
    assert_eq!(recorded.tools.len(), 2);
}

#[tokio::test]
async fn parallel_tool_calls_false_stops_after_one_call() {
    let server = Server::start().await;
    let answer = server
        .chat_with("T", with_tools(json!({"parallel_tool_calls": false})))
        .await;
    let body = answer.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(body["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn tool_call_without_tools_is_text() {
    let server = Server::start().await;
    for extra in [json!({}), with_tools(json!({"tool_choice": "none"}))] {
        let answer = server.chat_with("T", extra).await;
        let body = answer.ok();
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        assert!(choice["message"].get("tool_calls").is_none());
        assert!(
            choice["message"]["content"]
                .as_str()
                .unwrap()
                .contains("<tool_call>")
        );
        // The template was rendered without tools.
        assert_eq!(server.turn(answer.turn()).prompt_ids.len(), "user: T".len());
    }
}

#[tokio::test]
async fn streamed_tool_calls_carry_their_index() {
    let server = Server::start().await;
    let full = server.chat_with("T", with_tools(json!({}))).await.ok();
    let streamed = Streamed::of(&read(server.stream("T", with_tools(json!({}))).await).await);
    assert_eq!(streamed.finish.as_deref(), Some("tool_calls"));
    assert_eq!(streamed.content, "I look.");
    let calls = full["choices"][0]["message"]["tool_calls"]
        .as_array()
        .unwrap();
    assert_eq!(streamed.calls.len(), 2);
    for (call, (name, arguments)) in calls.iter().zip(&streamed.calls) {
        assert_eq!(call["function"]["name"], name.as_str());
        assert_eq!(call["function"]["arguments"], arguments.as_str());
    }
}

#[tokio::test]
async fn tool_results_are_rendered_into_the_conversation() {
    let server = Server::start().await;
    let first = server.chat_with("T", with_tools(json!({}))).await;
    let reply = first.ok()["choices"][0]["message"].clone();
    let id = reply["tool_calls"][0]["id"].clone();
    let messages = json!([
        {"role": "user", "content": "T"},
        reply,
        {"role": "tool", "tool_call_id": id, "content": "the text A"},
    ]);
    let second = server
        .chat_with("", with_tools(json!({"messages": messages})))
        .await;
    assert_eq!(second.ok()["choices"][0]["message"]["content"], "yes");
    assert_eq!(
        first.header("x-clawhost-session"),
        second.header("x-clawhost-session")
    );
    let next = server.turn(first.turn()).next_state.unwrap();
    assert_eq!(next[0].text(), "the text A");
}

/// A request whose first tool call is truncated by `max_tokens`.
fn cut() -> Value {
    with_tools(json!({"max_tokens": 3}))
}

#[tokio::test]
async fn malformed_tool_call_stays_text_and_is_reported() {
    let server = Server::start().await;
    let answer = server.chat_with("T", cut()).await;
    let choice = answer.ok()["choices"][0].clone();
    let message = &choice["message"];
    assert!(message.get("tool_calls").is_none());
    assert!(
        message["content"]
            .as_str()
            .unwrap()
            .contains("<tool_call>\n{\"name\": \"read\"")
    );
    let reasons = message["malformed_tool_calls"].as_array().unwrap();
    assert_eq!(reasons.len(), 1);
    let reason = reasons[0].as_str().unwrap();
    assert!(!reason.is_empty());

    let recorded = server.turn(answer.turn()).completion.unwrap().reply;
    assert_eq!(&json!(recorded), message);
    let path = format!("/v1/turns/{}/explain", answer.turn());
    let explanation = server.get(&path).await.ok();
    assert_eq!(
        explanation["malformed_calls"],
        json!([format!(
            "The reply tried a tool call that did not parse: {reason}"
        )])
    );
    // A message sent back with `malformed_tool_calls` is accepted unchanged.
    let second = server
        .chat_with(
            "",
            json!({"messages": [{"role": "user", "content": "T"}, message, {"role": "user", "content": "A"}]}),
        )
        .await;
    assert_eq!(
        second.header("x-clawhost-session"),
        answer.header("x-clawhost-session")
    );
    let messages = server.turn(second.turn()).messages;
    assert!(json!(messages[1]).get("malformed_tool_calls").is_none());
}

#[tokio::test]
async fn last_chunk_carries_malformed_tool_calls() {
    let server = Server::start().await;
    let chunks: Vec<Value> = read(server.stream("T", cut()).await)
        .await
        .iter()
        .filter_map(|event| serde_json::from_str(event).ok())
        .collect();
    let marked: Vec<&Value> = chunks
        .iter()
        .filter(|chunk| {
            chunk
                .pointer("/choices/0/delta/malformed_tool_calls")
                .is_some()
        })
        .collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0]["choices"][0]["finish_reason"], "length");
    let full = server.chat_with("T", cut()).await;
    assert_eq!(
        marked[0]["choices"][0]["delta"]["malformed_tool_calls"],
        full.ok()["choices"][0]["message"]["malformed_tool_calls"]
    );
}

#[tokio::test]
async fn reply_without_malformed_calls_has_no_field() {
    let server = Server::start().await;
    for (text, extra) in [
        ("T", with_tools(json!({}))),
        ("T", json!({})),
        ("A", json!({})),
    ] {
        let answer = server.chat_with(text, extra).await;
        let message = answer.ok()["choices"][0]["message"].clone();
        assert!(message.get("malformed_tool_calls").is_none(), "{message}");
        let explanation = server
            .get(&format!("/v1/turns/{}/explain", answer.turn()))
            .await
            .ok();
        assert_eq!(explanation["malformed_calls"], json!([]));
    }
}

#[tokio::test]
async fn other_dialects_record_malformed_calls_without_returning_them() {
    let server = Server::start().await;
    let tool = json!({"name": "read", "input_schema": {"type": "object"}});
    let message = server
        .post(
            "/v1/messages",
            &json!({"model": "tiny", "messages": [{"role": "user", "content": "T"}], "max_tokens": 3,
                    "temperature": 0, "tools": [tool]}),
        )
        .await;
    let tool = json!({"type": "function", "name": "read", "parameters": {"type": "object"}});
    let response = server
        .post(
            "/v1/responses",
            &json!({"model": "tiny", "input": "T", "max_output_tokens": 3, "temperature": 0, "tools": [tool]}),
        )
        .await;
    for answer in [&message, &response] {
        answer.ok();
        assert!(!answer.text.contains("malformed_tool_calls"));
        let recorded = server.turn(answer.turn()).completion.unwrap().reply;
        assert_eq!(recorded.malformed_tool_calls.len(), 1);
    }
    let again = server
        .post(
            "/v1/responses",
            &json!({"model": "tiny", "input": "A", "previous_response_id": response.json()["id"], "temperature": 0}),
        )
        .await;
    again.ok();
    let messages = server.turn(again.turn()).messages;
    assert!(json!(messages[1]).get("malformed_tool_calls").is_none());
}
