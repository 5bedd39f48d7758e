//! Tool call arguments are streamed as they are generated, in every dialect; truncated calls are returned as far as they
//! were generated.

use serde_json::{Value, json};

use crate::server::Server;
use crate::streaming::{Streamed, read};

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}}})
}

fn chat_tools(extra: Value) -> Value {
    let mut body = json!({"tools": [{"type": "function", "function": {"name": "read", "parameters": schema()}}]});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn message(max_tokens: u32, stream: bool) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "P"}], "max_tokens": max_tokens, "temperature": 0,
           "stream": stream, "tools": [{"name": "read", "input_schema": schema()}]})
}

fn response(max_tokens: u32, stream: bool) -> Value {
    json!({"model": "tiny", "input": "P", "max_output_tokens": max_tokens, "temperature": 0, "stream": stream,
           "tools": [{"type": "function", "name": "read", "parameters": schema()}]})
}

/// The data of the events of a stream.
async fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let request = server.request(reqwest::Method::POST, path).json(body);
    let stream_events = read(request.send().await.unwrap()).await;
    stream_events
        .iter()
        .filter_map(|event| serde_json::from_str(event).ok())
        .collect()
}

/// The strings at a JSON pointer of the events that have one.
fn texts<'a>(events: &'a [Value], place: &str) -> Vec<&'a str> {
    events
        .iter()
        .filter_map(|event| event.pointer(place)?.as_str())
        .filter(|text| !text.is_empty())
        .collect()
}

const WHOLE: &str = "{\"path\": \"b.txt\"}";
/// The arguments that two tokens generate.
const CUT: &str = "{\"path\": \"b";

#[tokio::test]
async fn arguments_are_streamed_incrementally_in_every_dialect() {
    let server = Server::start().await;
    let pieces = ["{\"path\": ", "\"b", ".txt\"}"];

    let stream_events = read(server.stream("P", chat_tools(json!({}))).await).await;
    let streamed = Streamed::of(&stream_events);
    assert_eq!(streamed.calls, [("read".to_owned(), WHOLE.to_owned())]);
    assert_eq!(streamed.finish.as_deref(), Some("tool_calls"));
    let chunks: Vec<Value> = stream_events
        .iter()
        .filter_map(|event| serde_json::from_str(event).ok())
        .collect();
    let place = "/choices/0/delta/tool_calls/0/function/arguments";
    assert_eq!(texts(&chunks, place), pieces);
    let full = server.chat_with("P", chat_tools(json!({}))).await.ok();
    let call = &full["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], WHOLE);

    let stream_events = events(&server, "/v1/messages", &message(50, true)).await;
    assert_eq!(texts(&stream_events, "/delta/partial_json"), pieces);
    let full = server.post("/v1/messages", &message(50, false)).await.ok();
    assert_eq!(full["content"][0]["input"], json!({"path": "b.txt"}));

    let stream_events = events(&server, "/v1/responses", &response(50, true)).await;
    let deltas: Vec<Value> = stream_events
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta")
        .cloned()
        .collect();
    assert_eq!(texts(&deltas, "/delta"), pieces);
    let done = stream_events
        .iter()
        .find(|event| event["type"] == "response.output_item.done");
    assert_eq!(done.unwrap()["item"]["arguments"], WHOLE);
    assert_eq!(done.unwrap()["item"]["status"], "completed");
}

#[tokio::test]
async fn truncated_call_is_returned_as_far_as_generated() {
    let server = Server::start().await;
    let cut = || chat_tools(json!({"max_tokens": 2}));
    let answer = server.chat_with("P", cut()).await;
    let choice = answer.ok()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "length");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (&json!("read"), &json!(CUT))
    );
    assert_eq!(choice["message"]["content"], Value::Null);
    let marks = choice["message"]["malformed_tool_calls"]
        .as_array()
        .unwrap();
    assert_eq!(marks.len(), 1);
    assert_eq!(
        json!(server.turn(answer.turn()).completion.unwrap().reply),
        choice["message"]
    );
    let streamed = Streamed::of(&read(server.stream("P", cut()).await).await);
    assert_eq!(streamed.calls, [("read".to_owned(), CUT.to_owned())]);
    assert_eq!(streamed.finish.as_deref(), Some("length"));

    // Clients reject an input that is not an object, and might take a partial one as complete.
    let full = server.post("/v1/messages", &message(2, false)).await.ok();
    assert_eq!(full["stop_reason"], "max_tokens");
    assert_eq!(full["content"][0]["type"], "tool_use");
    assert_eq!(full["content"][0]["input"], json!({}));
    let stream_events = events(&server, "/v1/messages", &message(2, true)).await;
    assert_eq!(texts(&stream_events, "/delta/partial_json").concat(), CUT);
    assert_eq!(texts(&stream_events, "/delta/stop_reason"), ["max_tokens"]);

    let answer = server.post("/v1/responses", &response(2, false)).await;
    let full = answer.ok();
    assert_eq!(full["incomplete_details"]["reason"], "max_output_tokens");
    let item = &full["output"][0];
    assert_eq!(
        (&item["arguments"], &item["status"]),
        (&json!(CUT), &json!("incomplete"))
    );
    let path = format!("/v1/responses/{}", full["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.ok()["output"], full["output"]);
}
