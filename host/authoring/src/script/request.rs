//! Requests of a plugin as JSON, the form in which transcripts expect them.

use clawhost_plugins::{HttpRequest, Message, ModelRequest};
use serde_json::{Map, Value, json};

/// A request for completions.
pub(super) fn completion_to_json(request: &ModelRequest) -> Value {
    let tools: Vec<Value> = request.tools.iter().map(|tool| tool.to_openai()).collect();
    json!({
        "model": request.model,
        "messages": messages_to_json(&request.messages),
        "tools": tools,
        "n": request.n,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "stop": request.stop,
        "seed": request.seed,
        "schema": request.schema,
    })
}

/// A request for the log-probabilities of a completion.
pub(super) fn score_to_json(model: &str, messages: &[Message], completion: &str) -> Value {
    json!({"model": model, "messages": messages_to_json(messages), "completion": completion})
}

/// An HTTP request; its body is JSON where `expected` has something other than text for it, and it is JSON.
pub(super) fn http_to_json(request: &HttpRequest, expected: &Value) -> Value {
    let text = String::from_utf8_lossy(&request.body);
    let wants_json = expected.get("body").is_some_and(|body| !body.is_string());
    let body = if wants_json {
        serde_json::from_str(&text).unwrap_or_else(|_| text.into())
    } else {
        Value::from(text)
    };
    let headers: Map<String, Value> = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), Value::from(value.as_str())))
        .collect();
    json!({"method": request.method, "url": request.url, "headers": headers, "body": body})
}

fn messages_to_json(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(Message::to_openai).collect()
}
