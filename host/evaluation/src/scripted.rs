//! A scripted chat endpoint for tests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::persona::{Key, Persona, Phase};

/// Response of the endpoint to one request.
pub(crate) enum ScriptedReply {
    /// Streams this text.
    Text(String),
    /// Streams this text and closes the connection.
    Truncated(String),
    /// Returns this status and error message.
    Error(u16, String),
}

/// Requests that the endpoint has received.
#[derive(Default)]
pub(crate) struct RequestLog {
    pub(crate) bodies: Vec<Value>,
    pub(crate) headers: Vec<HeaderMap>,
    pub(crate) health_requests: u64,
}

type ReplyFn = dyn Fn(&Value, &RequestLog) -> ScriptedReply + Send + Sync;
type HealthFn = dyn Fn(&RequestLog) -> Value + Send + Sync;

pub(crate) struct ScriptedServer {
    pub(crate) url: String,
    pub(crate) log: Arc<Mutex<RequestLog>>,
}

#[derive(Clone)]
struct Shared {
    log: Arc<Mutex<RequestLog>>,
    reply_fn: Arc<ReplyFn>,
    health_fn: Arc<HealthFn>,
}

/// Starts an endpoint on a free port; it lives as long as the test's runtime.
pub(crate) async fn serve(
    reply_fn: impl Fn(&Value, &RequestLog) -> ScriptedReply + Send + Sync + 'static,
    health_fn: impl Fn(&RequestLog) -> Value + Send + Sync + 'static,
) -> ScriptedServer {
    let shared = Shared {
        log: Arc::default(),
        reply_fn: Arc::new(reply_fn),
        health_fn: Arc::new(health_fn),
    };
    let log = Arc::clone(&shared.log);
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/healthz", get(health))
        .with_state(shared);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    ScriptedServer { url, log }
}

async fn health(State(shared): State<Shared>) -> Response {
    let mut log = shared.log.lock().unwrap();
    log.health_requests += 1;
    axum::Json((shared.health_fn)(&log)).into_response()
}

async fn chat(
    State(shared): State<Shared>,
    headers: HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let reply = {
        let mut log = shared.log.lock().unwrap();
        let reply = (shared.reply_fn)(&body, &log);
        log.bodies.push(body);
        log.headers.push(headers);
        reply
    };
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let mut events = vec![chunk(json!({"role": "assistant"}), Value::Null)];
    let (text, complete) = match reply {
        ScriptedReply::Error(status, message) => {
            let status = axum::http::StatusCode::from_u16(status).unwrap();
            let error = json!({"error": {"message": message, "type": "test"}});
            return (status, axum::Json(error)).into_response();
        }
        ScriptedReply::Truncated(text) => (text, false),
        ScriptedReply::Text(text) => (text, true),
    };
    for word in text.split_inclusive(' ') {
        events.push(chunk(json!({"content": word}), Value::Null));
    }
    if complete {
        events.push(chunk(json!({}), json!("stop")));
        events.push("data: [DONE]\n\n".into());
    }
    let stream =
        futures_util::stream::iter(events.into_iter().map(Ok::<_, std::convert::Infallible>));
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("x-clawhost-adapter", "3-abcdef")
        .body(Body::from_stream(stream))
        .unwrap()
}

/// Correct answers by opening message.
pub(crate) fn keys(persona: &dyn Persona, seed: u64, conversations: usize) -> HashMap<String, i64> {
    let phases = [Phase::Talk, Phase::Fresh];
    let numbers = phases
        .into_iter()
        .flat_map(|phase| (0..conversations).map(move |number| (phase, number)));
    numbers
        .map(|(phase, number)| {
            let task = persona.task(seed, number, phase);
            match task.key {
                Key::Homework { answer, .. } | Key::Grading { answer, .. } => {
                    (task.opening, answer)
                }
                Key::Wish { .. } => unreachable!("a wish has no number"),
            }
        })
        .collect()
}

/// Text of message `at` of a request.
pub(crate) fn message(body: &Value, at: usize) -> &str {
    body.pointer(&format!("/messages/{at}/content"))
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// Number of messages of a request.
pub(crate) fn messages(body: &Value) -> usize {
    body.get("messages")
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}
