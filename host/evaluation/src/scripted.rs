//! A chat endpoint that answers what a test tells it to: the far side of the one seam of this crate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::persona::{Key, Persona};
use crate::seeds::{Purpose, derive};

/// What the endpoint does with one request.
pub(crate) enum Answer {
    /// Streams this text.
    Say(String),
    /// Streams this much and hangs up.
    Cut(String),
    /// Refuses with this status and message.
    Refuse(u16, String),
}

/// What has happened at the endpoint.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) bodies: Vec<Value>,
    pub(crate) headers: Vec<HeaderMap>,
    pub(crate) health_asked: u64,
}

type Answers = dyn Fn(&Value, &Log) -> Answer + Send + Sync;
type Healths = dyn Fn(&Log) -> Value + Send + Sync;

pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) log: Arc<Mutex<Log>>,
}

#[derive(Clone)]
struct Shared {
    log: Arc<Mutex<Log>>,
    answers: Arc<Answers>,
    healths: Arc<Healths>,
}

/// Starts an endpoint on a free port; it lives as long as the test's runtime.
pub(crate) async fn serve(
    answers: impl Fn(&Value, &Log) -> Answer + Send + Sync + 'static,
    healths: impl Fn(&Log) -> Value + Send + Sync + 'static,
) -> Scripted {
    let shared = Shared {
        log: Arc::default(),
        answers: Arc::new(answers),
        healths: Arc::new(healths),
    };
    let log = Arc::clone(&shared.log);
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/healthz", get(health))
        .with_state(shared);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Scripted { url, log }
}

async fn health(State(shared): State<Shared>) -> Response {
    let mut log = shared.log.lock().unwrap();
    log.health_asked += 1;
    axum::Json((shared.healths)(&log)).into_response()
}

async fn chat(
    State(shared): State<Shared>,
    headers: HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let answer = {
        let mut log = shared.log.lock().unwrap();
        let answer = (shared.answers)(&body, &log);
        log.bodies.push(body);
        log.headers.push(headers);
        answer
    };
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let mut events = vec![chunk(json!({"role": "assistant"}), Value::Null)];
    let said = match answer {
        Answer::Refuse(status, message) => {
            let status = axum::http::StatusCode::from_u16(status).unwrap();
            let error = json!({"error": {"message": message, "type": "test"}});
            return (status, axum::Json(error)).into_response();
        }
        Answer::Cut(text) => (text, false),
        Answer::Say(text) => (text, true),
    };
    for word in said.0.split_inclusive(' ') {
        events.push(chunk(json!({"content": word}), Value::Null));
    }
    if said.1 {
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

/// Right numbers by opening, for the conversations of a demonstration.
pub(crate) fn keys(persona: &dyn Persona, seed: u64, conversations: u64) -> HashMap<String, i64> {
    (0..conversations)
        .map(|number| {
            let task = persona.begin(
                derive(seed, number, Purpose::Task, 0),
                derive(seed, number, Purpose::Wording, 0),
            );
            match task.key {
                Key::Homework { answer, .. } | Key::Grading { answer, .. } => {
                    (task.opening, answer)
                }
            }
        })
        .collect()
}

/// The text of message `at` of a request.
pub(crate) fn message(body: &Value, at: usize) -> &str {
    body.pointer(&format!("/messages/{at}/content"))
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// How many messages a request holds.
pub(crate) fn messages(body: &Value) -> usize {
    body.get("messages")
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}
