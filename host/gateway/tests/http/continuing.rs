//! Replies that continue the last message: Anthropic's prefill, and `continue_final_message` of chat completions.

use clawhost_chat::Message;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server, chat_body};

async fn message(server: &Server, extra: Value) -> ApiResponse {
    let mut body = json!({"model": "tiny", "max_tokens": 50, "temperature": 0});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.post("/v1/messages", &body).await
}

fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[tokio::test]
async fn prefilled_message_is_continued_and_recorded_as_one() {
    let server = Server::start().await;
    let messages = json!([say("user", "A"), say("assistant", "I say H")]);
    let answer = message(&server, json!({"messages": messages})).await;
    let body = answer.ok();
    // The response has the new text only, the record has the whole message, as a client sends it back.
    assert_eq!(
        body["content"],
        json!([{"type": "text", "text": "Hello, w\u{f6}rld!"}])
    );
    assert_eq!(body["stop_reason"], "end_turn");
    let turn = server.turn(answer.turn());
    assert_eq!(turn.messages, [Message::user("A")]);
    assert_eq!(turn.prompt_ids.len(), "user: A\nassistant: I say H".len());
    let reply = turn.completion.unwrap().reply;
    let content = reply.text();
    assert_eq!(content, "I say HHello, w\u{f6}rld!");

    let next = json!([
        say("user", "A"),
        say("assistant", &content),
        say("user", "B")
    ]);
    let next = message(&server, json!({"messages": next})).await;
    next.ok();
    assert_eq!(
        next.header("x-clawhost-session"),
        answer.header("x-clawhost-session")
    );
    let state = server.turn(answer.turn()).next_state.unwrap();
    assert_eq!(state[0].text(), "B");
}

#[tokio::test]
async fn continue_final_message_continues_the_last_message() {
    let server = Server::start().await;
    let messages = json!([say("user", "B"), say("assistant", "A")]);
    let continued = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
    let answer = server.chat_with("", continued.clone()).await;
    let body = answer.ok();
    assert_eq!(body["choices"][0]["message"]["content"], "yes");
    assert_eq!(
        body["usage"]["prompt_tokens"],
        "user: B\nassistant: A".len()
    );
    assert_eq!(
        server.turn(answer.turn()).completion.unwrap().reply.text(),
        "Ayes"
    );

    let with = |extra: Value| {
        let mut body = continued.clone();
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let calls =
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let called =
        json!([say("user", "B"), {"role": "assistant", "content": "A", "tool_calls": calls}]);
    for refused in [
        with(json!({"messages": [say("user", "A")]})),
        with(json!({"messages": [say("assistant", "A")]})),
        with(json!({"messages": called})),
        with(json!({"response_format": {"type": "json_object"}})),
        with(json!({"add_generation_prompt": true})),
    ] {
        let answer = server
            .post("/v1/chat/completions", &chat_body("", refused))
            .await;
        assert_eq!(answer.error(400), "invalid_value");
    }
}

#[tokio::test]
async fn continued_reasoning_block_is_parsed_as_reasoning() {
    let server = Server::start().await;
    let messages = json!([say("user", "B"), say("assistant", "<think>\nso R")]);
    let answer = message(&server, json!({"messages": messages})).await;
    let blocks = answer.ok()["content"].clone();
    assert_eq!(blocks[0]["type"], "thinking", "{blocks}");
    assert_eq!(blocks[1]["text"], "It is 4.");
}
