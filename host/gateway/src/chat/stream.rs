//! A reply as server-sent events: each piece of text leaves when the token that made it final is drawn.
//!
//! The events own the choices. When the client goes away the server drops the events, the choices with
//! them, and each choice cancels its generation and records what was said. A choice's last chunk leaves
//! only after its turn was recorded as complete.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, unfold};
use serde_json::{Value, json};

use super::choice::{Choice, Closing, Delta, Progress};
use super::head::Head;
use super::request::ChatRequest;
use super::response::Usage;
use super::{Reply, logprobs};
use crate::admission::Slot;
use crate::error::ApiError;
use crate::gateway::Shared;

type Step = (Choice, Result<Progress, ApiError>);

/// The state between two events.
struct Events {
    shared: Arc<Shared>,
    head: Head,
    chat: ChatRequest,
    closing: Arc<Closing>,
    running: FuturesUnordered<BoxFuture<'static, Step>>,
    /// Written and not sent yet.
    ready: VecDeque<Event>,
    usage: Usage,
    finished: bool,
    _slot: Slot,
}

/// Answers with the events of this reply.
pub(super) fn respond(shared: &Arc<Shared>, reply: Reply) -> Response {
    let Reply {
        head,
        chat,
        prompt_ids,
        choices,
        closing,
        slot,
    } = reply;
    let mut events = Events {
        shared: shared.clone(),
        running: FuturesUnordered::new(),
        ready: VecDeque::new(),
        usage: Usage::default(),
        finished: false,
        _slot: slot,
        head,
        chat,
        closing,
    };
    for (position, choice) in choices.into_iter().enumerate() {
        let mut chunk = events.chunk(vec![json!({
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": null,
            "finish_reason": null,
        })]);
        if position == 0
            && events.chat.return_token_ids
            && let Some(chunk) = chunk.as_object_mut()
        {
            chunk.insert("prompt_token_ids".into(), json!(prompt_ids));
        }
        events.send(&chunk);
        events.running.push(step(choice));
    }
    let headers = events.head.headers();
    let stream = unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    let mut response = Sse::new(stream)
        .keep_alive(KeepAlive::new().interval(shared.options.keep_alive))
        .into_response();
    response.headers_mut().extend(headers);
    // Proxies that collect a response before they pass it on would undo the streaming.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

fn step(mut choice: Choice) -> BoxFuture<'static, Step> {
    Box::pin(async move {
        let progress = choice.next().await;
        (choice, progress)
    })
}

impl Events {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            match self.running.next().await {
                Some((choice, progress)) => self.take(choice, progress),
                None => self.end(),
            }
        }
    }

    fn take(&mut self, mut choice: Choice, progress: Result<Progress, ApiError>) {
        match progress {
            Ok(Progress::Deltas(deltas)) => {
                self.write(&mut choice, deltas);
                self.running.push(step(choice));
            }
            Ok(Progress::Ended(deltas)) => {
                if !deltas.is_empty() {
                    self.write(&mut choice, deltas);
                }
                self.usage.add(&choice);
                let finish = choice.finish_reason();
                let last = self.entry(&mut choice, json!({}), finish);
                self.send(&self.chunk(vec![last]));
            }
            Err(error) => {
                // The status line has left long ago, so the error is an event of its own.
                self.closing
                    .because("another choice of the same reply failed");
                self.running.clear();
                self.ready.push_back(
                    Event::default()
                        .event("error")
                        .data(error.to_json().to_string()),
                );
                self.finish();
            }
        }
    }

    /// One chunk per change; the tokens that it took go with the first.
    fn write(&mut self, choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            let entry = self.entry(choice, delta_json(delta), None);
            self.send(&self.chunk(vec![entry]));
        }
    }

    /// The entry of a choice in a chunk.
    fn entry(&self, choice: &mut Choice, delta: Value, finish: Option<&str>) -> Value {
        let tokens = choice.take_fresh();
        let logprobs = (self.chat.logprobs && !tokens.is_empty()).then(|| {
            let entries = logprobs::entries(
                self.shared.engine.tokenizer(),
                &tokens,
                self.chat.sampling.top_logprobs,
            );
            json!({"content": entries, "refusal": null})
        });
        let mut out = json!({
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        if self.chat.return_token_ids
            && let Some(out) = out.as_object_mut()
        {
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            out.insert("token_ids".into(), json!(ids));
        }
        out
    }

    fn end(&mut self) {
        self.shared
            .metrics
            .prompt_tokens(self.usage.prompt, self.usage.cached);
        if self.chat.include_usage {
            let mut chunk = self.chunk(Vec::new());
            if let Some(chunk) = chunk.as_object_mut() {
                chunk.insert("usage".into(), self.usage.to_json());
            }
            self.send(&chunk);
        }
        self.finish();
    }

    fn finish(&mut self) {
        self.ready.push_back(Event::default().data("[DONE]"));
        self.finished = true;
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
        });
        if self.chat.include_usage
            && let Some(chunk) = chunk.as_object_mut()
        {
            chunk.insert("usage".into(), Value::Null);
        }
        chunk
    }

    fn send(&mut self, chunk: &Value) {
        self.ready
            .push_back(Event::default().data(chunk.to_string()));
    }
}

fn delta_json(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"content": text}),
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::Call { index, id, name } => json!({"tool_calls": [{
            "index": index,
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}),
        Delta::Arguments { index, json } => json!({"tool_calls": [{
            "index": index,
            "function": {"arguments": json},
        }]}),
    }
}
