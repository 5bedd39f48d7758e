//! The answer as server-sent events: each piece of text leaves when the token that made it final is drawn.
//!
//! The events own the texts. When the client goes away the server drops the events, the texts with them, and each
//! cancels its generation.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, unfold};
use serde_json::{Value, json};

use super::begin::Begun;
use super::choice::Choice;
use super::shape::{Logprobs, prompt_logprobs};
use super::whole::usage;
use crate::admission::HeldSlot;
use crate::error::ApiError;

type Step = (Choice, Result<Option<String>, ApiError>);

/// The state between two events.
struct Writing {
    begun: Begun,
    running: FuturesUnordered<BoxFuture<'static, Step>>,
    ended: Vec<Choice>,
    out: VecDeque<Event>,
    finished: bool,
    _slot: Option<HeldSlot>,
}

/// Answers with the events of these texts.
pub(super) fn respond(mut begun: Begun) -> Response {
    let headers = begun.headers();
    let keep_alive = KeepAlive::new().interval(begun.shared.options.keep_alive);
    let choices = std::mem::take(&mut begun.choices);
    let generated: Vec<_> = choices.iter().map(Choice::generated).collect();
    let slot = begun.slot.take().map(|slot| {
        slot.hold_until(async move {
            for choice in generated {
                choice.await;
            }
        })
    });
    let mut writing = Writing {
        begun,
        running: FuturesUnordered::new(),
        ended: Vec::new(),
        out: VecDeque::new(),
        finished: false,
        _slot: slot,
    };
    for choice in choices {
        writing.open(&choice);
        writing.running.push(step(choice));
    }
    let stream = unfold(writing, |mut writing| async move {
        let event = writing.next().await?;
        Some((Ok::<_, Infallible>(event), writing))
    });
    let mut response = Sse::new(stream).keep_alive(keep_alive).into_response();
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
        let piece = choice.next().await;
        (choice, piece)
    })
}

impl Writing {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.out.pop_front() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            match self.running.next().await {
                Some((choice, piece)) => self.take(choice, piece),
                None => self.end(),
            }
        }
    }

    fn take(&mut self, mut choice: Choice, piece: Result<Option<String>, ApiError>) {
        match piece {
            Ok(piece) => {
                let shows =
                    self.begun.asked.logprobs.is_some() || self.begun.asked.return_token_ids;
                let piece = piece.unwrap_or_default();
                if !piece.is_empty() || shows || choice.finish.is_some() {
                    self.write(&mut choice, &piece);
                }
                if choice.finish.is_some() {
                    self.ended.push(choice);
                } else {
                    self.running.push(step(choice));
                }
            }
            Err(error) => {
                // The status line has left long ago, so the error is an event of its own.
                self.running.clear();
                let data = error.to_json().to_string();
                self.out
                    .push_back(Event::default().event("error").data(data));
                self.done();
            }
        }
    }

    /// What is known of a text before its first token: the echoed prompt and what is asked about it.
    fn open(&mut self, choice: &Choice) {
        let asked = &self.begun.asked;
        let Some(prompt) = asked.prompts.get(choice.prompt) else {
            return;
        };
        let scored = self.begun.scored.get(choice.prompt);
        let scored = scored.map_or(&[][..], Vec::as_slice);
        let tokenizer = self.begun.shared.engine.tokenizer();
        if !asked.echo && asked.prompt_logprobs.is_none() && !asked.return_token_ids {
            return;
        }
        let text = if asked.echo { prompt.text.as_str() } else { "" };
        let logprobs = asked.logprobs.filter(|_| asked.echo).map(|count| {
            let mut lists = Logprobs::new(count);
            lists.prompt(tokenizer, prompt, scored);
            lists.to_json()
        });
        let mut entry = json!({
            "index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": null,
        });
        if let Some(entry) = entry.as_object_mut() {
            if let Some(count) = asked.prompt_logprobs {
                let lists = prompt_logprobs(tokenizer, prompt, scored, count);
                entry.insert("prompt_logprobs".into(), lists);
            }
            if asked.return_token_ids {
                entry.insert("prompt_token_ids".into(), json!(prompt.ids));
                entry.insert("token_ids".into(), json!([]));
            }
        }
        self.send(vec![entry]);
    }

    fn write(&mut self, choice: &mut Choice, piece: &str) {
        let asked = &self.begun.asked;
        let tokenizer = self.begun.shared.engine.tokenizer();
        let tokens = choice.take_fresh();
        let echoed = asked.prompts.get(choice.prompt).filter(|_| asked.echo);
        let before = echoed.map_or(0, |prompt| prompt.text.chars().count());
        let logprobs = asked.logprobs.filter(|_| !tokens.is_empty()).map(|count| {
            let mut lists = Logprobs::new(count);
            for (token, offset) in &tokens {
                lists.sampled(tokenizer, token, before + offset);
            }
            lists.to_json()
        });
        let mut entry = json!({
            "index": choice.index,
            "text": piece,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop,
        });
        if asked.return_token_ids
            && let Some(entry) = entry.as_object_mut()
        {
            let ids: Vec<u32> = tokens.iter().map(|(token, _)| token.id).collect();
            entry.insert("token_ids".into(), json!(ids));
        }
        self.send(vec![entry]);
    }

    fn end(&mut self) {
        let usage = usage(&self.begun, &self.ended);
        let metrics = &self.begun.shared.metrics;
        metrics.prompt_tokens(usage.prompt, usage.cached);
        if self.begun.asked.include_usage {
            let mut chunk = self.chunk(Vec::new());
            if let Some(chunk) = chunk.as_object_mut() {
                chunk.insert("usage".into(), usage.to_json());
            }
            self.out.push_back(Event::default().data(chunk.to_string()));
        }
        self.done();
    }

    fn done(&mut self) {
        self.out.push_back(Event::default().data("[DONE]"));
        self.finished = true;
    }

    fn send(&mut self, choices: Vec<Value>) {
        let chunk = self.chunk(choices);
        self.out.push_back(Event::default().data(chunk.to_string()));
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let begun = &self.begun;
        let mut chunk = json!({
            "id": begun.id,
            "object": "text_completion",
            "created": begun.created,
            "model": begun.model,
            "system_fingerprint": begun.fingerprint,
            "choices": choices,
        });
        if begun.asked.include_usage
            && let Some(chunk) = chunk.as_object_mut()
        {
            chunk.insert("usage".into(), Value::Null);
        }
        chunk
    }
}
