//! Streaming chat completions: one chunk per token text; the end is sent after the turn is recorded.

use clawhost_journal::TurnState;
use futures_util::StreamExt;
use reqwest::Response;
use serde_json::{Value, json};

use crate::server::Server;

/// The data of all events of a stream, in order.
pub(crate) async fn read(response: Response) -> Vec<String> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.unwrap();
    events(&text)
}

fn events(text: &str) -> Vec<String> {
    text.split("\n\n")
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
        .map(str::to_owned)
        .collect()
}

/// The message that a client assembles from the chunks of a choice.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) finish: Option<String>,
}

impl Streamed {
    pub(crate) fn of(events: &[String]) -> Self {
        Self::choice(events, 0)
    }

    fn choice(events: &[String], index: usize) -> Self {
        let mut all = Self::default();
        for event in events.iter().filter(|event| *event != "[DONE]") {
            let chunk: Value = serde_json::from_str(event).unwrap();
            for choice in chunk["choices"].as_array().unwrap() {
                if choice["index"] != index {
                    continue;
                }
                assert!(all.finish.is_none(), "a chunk after the last: {event}");
                let delta = &choice["delta"];
                all.content
                    .push_str(delta["content"].as_str().unwrap_or(""));
                all.reasoning
                    .push_str(delta["reasoning_content"].as_str().unwrap_or(""));
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let position = call["index"].as_u64().unwrap() as usize;
                    if let Some(name) = call["function"]["name"].as_str() {
                        assert_eq!(position, all.calls.len());
                        assert!(call["id"].is_string());
                        all.calls.push((name.to_owned(), String::new()));
                    }
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    all.calls[position].1.push_str(arguments);
                }
                all.finish = choice["finish_reason"].as_str().map(str::to_owned);
            }
        }
        all
    }
}

#[tokio::test]
async fn chunks_have_openai_format() {
    let server = Server::start().await;
    let events = read(server.stream("H", json!({})).await).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let first = &chunks[0];
    assert_eq!(
        first["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], first["id"]);
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        assert!(chunk.get("usage").is_none());
    }
    let texts: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .filter(|text| !text.is_empty())
        .collect();
    // The two bytes of one character arrive together, everything else token by token.
    assert_eq!(texts.concat(), "Hello, wörld!");
    assert!(texts.len() >= 4, "{texts:?}");
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    let unfinished = chunks
        .iter()
        .filter(|chunk| chunk["choices"][0]["finish_reason"].is_null());
    assert_eq!(unfinished.count(), chunks.len() - 1);
}

#[tokio::test]
async fn stream_equals_the_non_streaming_response() {
    let server = Server::start().await;
    for text in ["H", "R", "S", "X"] {
        let full = server.chat(text).await.ok();
        let message = &full["choices"][0]["message"];
        let streamed = Streamed::of(&read(server.stream(text, json!({})).await).await);
        assert_eq!(message["content"], streamed.content.as_str());
        assert_eq!(
            message["reasoning_content"].as_str().unwrap_or(""),
            streamed.reasoning
        );
        assert_eq!(
            full["choices"][0]["finish_reason"].as_str(),
            streamed.finish.as_deref()
        );
    }
}

#[tokio::test]
async fn usage_chunk_is_last_if_requested() {
    let server = Server::start().await;
    let extra = json!({"stream_options": {"include_usage": true}, "n": 2});
    let events = read(server.stream("H", extra).await).await;
    let chunk: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(chunk["choices"], json!([]));
    assert_eq!(chunk["usage"]["prompt_tokens"], 7);
    assert_eq!(chunk["usage"]["completion_tokens"], 14);
    let first: Value = serde_json::from_str(&events[0]).unwrap();
    assert!(first["usage"].is_null() && first.get("usage").is_some());
}

#[tokio::test]
async fn chunks_carry_the_choice_index() {
    let server = Server::start().await;
    let extra = json!({"n": 2, "temperature": 1, "seed": 3, "max_tokens": 9});
    let full = server.chat_with("u", extra.clone()).await.ok();
    let events = read(server.stream("u", extra).await).await;
    for index in 0..2 {
        let streamed = Streamed::choice(&events, index);
        assert_eq!(
            full["choices"][index]["message"]["content"],
            streamed.content.as_str()
        );
        assert_eq!(streamed.finish.as_deref(), Some("length"));
    }
}

#[tokio::test]
async fn token_ids_and_logprobs_add_up_over_the_chunks() {
    let server = Server::start().await;
    let extra = json!({"return_token_ids": true, "logprobs": true, "top_logprobs": 1});
    let full = server.chat_with("H", extra.clone()).await.ok();
    let events = read(server.stream("H", extra).await).await;
    let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
    let mut prompts = 0;
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        if let Some(prompt) = chunk.get("prompt_token_ids") {
            assert_eq!(*prompt, full["prompt_token_ids"]);
            prompts += 1;
        }
        let choice = &chunk["choices"][0];
        ids.extend(
            choice["token_ids"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        logprobs.extend(
            choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    assert_eq!(prompts, 1);
    assert_eq!(json!(ids), full["choices"][0]["token_ids"]);
    assert_eq!(json!(logprobs), full["choices"][0]["logprobs"]["content"]);
}

#[tokio::test]
async fn text_is_sent_before_the_reply_is_complete() {
    let server = Server::start().await;
    let response = server.stream("L", json!({"max_tokens": 20_000})).await;
    let turn: i64 = response.headers()["x-clawhost-turn"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let mut body = response.bytes_stream();
    let mut seen = String::new();
    while !seen.contains("la la") && seen.matches("la ").count() < 3 {
        seen.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
    }
    assert_eq!(server.turn(turn).state, TurnState::Generating);
}

#[tokio::test]
async fn end_of_stream_is_sent_after_the_turn_is_recorded() {
    let server = Server::start().await;
    let response = server.stream("H", json!({})).await;
    let turn: i64 = response.headers()["x-clawhost-turn"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let mut body = response.bytes_stream();
    let mut seen = String::new();
    while !seen.contains("\"finish_reason\":\"stop\"") {
        seen.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
    }
    let recorded = server.turn(turn);
    assert_eq!(recorded.state, TurnState::Complete);
    assert_eq!(recorded.completion.unwrap().reply.text(), "Hello, wörld!");
}

#[tokio::test]
async fn failure_in_the_middle_is_an_error_event() {
    let server = Server::start().await;
    let response = server.stream("F", json!({})).await;
    let turn: i64 = response.headers()["x-clawhost-turn"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let text = response.text().await.unwrap();
    assert!(text.contains("event: error\n"), "{text}");
    let events = events(&text);
    let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(error["error"]["code"], "generation_failed");
    assert!(!text.contains("\"finish_reason\":\"stop\""));
    let recorded = server.ended(turn).await;
    assert_ne!(recorded.state, TurnState::Complete);
    let partial = recorded.completion.unwrap().reply;
    assert_eq!(partial.text(), "so far so good");
    // The next request is served, and a failing non-streaming request gets an error status.
    assert_eq!(server.chat("F").await.error(500), "generation_failed");
    server.chat("A").await.ok();
}
