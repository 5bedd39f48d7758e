//! Streaming responses: server-sent events, sent token by token.
//!
//! The stream owns the choices. When the client disconnects, the server drops the stream with its choices, and each
//! choice cancels its generation.

use axum::response::Response;
use axum::response::sse::{Event, KeepAlive};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, unfold};
use serde_json::{Value, json};

use super::choice::Choice;
use super::full::usage;
use super::logprobs::{Logprobs, prompt_logprobs};
use super::start::RunningCompletion;
use crate::admission::SlotGuard;
use crate::error::ApiError;
use crate::reply::{EventQueue, sse_response};

type PolledChoice = (Choice, Result<Option<String>, ApiError>);

/// The state of a stream between two events.
struct CompletionStream {
    completion: RunningCompletion,
    running: FuturesUnordered<BoxFuture<'static, PolledChoice>>,
    finished_choices: Vec<Choice>,
    out: EventQueue,
    finished: bool,
    _slot: Option<SlotGuard>,
}

/// Returns the stream of this completion.
pub(super) fn respond(mut completion: RunningCompletion) -> Response {
    let headers = completion.headers();
    let shared = completion.shared.clone();
    let choices = std::mem::take(&mut completion.choices);
    let generations = join_all(choices.iter().map(Choice::generation_finished));
    let slot = completion.slot.take();
    let slot = slot.map(|slot| slot.hold_until(generations));
    let mut stream_state = CompletionStream {
        completion,
        running: FuturesUnordered::new(),
        finished_choices: Vec::new(),
        out: EventQueue::default(),
        finished: false,
        _slot: slot,
    };
    for choice in choices {
        stream_state.write_prompt(&choice);
        stream_state.running.push(poll_choice(choice));
    }
    let events = unfold(stream_state, |mut stream_state| async move {
        let event = stream_state.next().await?;
        Some((event, stream_state))
    });
    sse_response(events, &shared, KeepAlive::new(), headers)
}

fn poll_choice(mut choice: Choice) -> BoxFuture<'static, PolledChoice> {
    Box::pin(async move {
        let piece = choice.next().await;
        (choice, piece)
    })
}

impl CompletionStream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.out.pop() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            match self.running.next().await {
                Some((choice, piece)) => self.handle_piece(choice, piece),
                None => self.finish(),
            }
        }
    }

    fn handle_piece(&mut self, mut choice: Choice, piece: Result<Option<String>, ApiError>) {
        match piece {
            Ok(piece) => {
                let shows_tokens = self.completion.request.logprobs.is_some()
                    || self.completion.request.return_token_ids;
                let piece = piece.unwrap_or_default();
                if !piece.is_empty() || shows_tokens || choice.finish.is_some() {
                    self.write(&mut choice, &piece);
                }
                if choice.finish.is_some() {
                    self.finished_choices.push(choice);
                } else {
                    self.running.push(poll_choice(choice));
                }
            }
            Err(error) => {
                // The status line is already sent, so the error is an event.
                self.running.clear();
                self.out.push_named("error", &error.to_json());
                self.write_done();
            }
        }
    }

    /// Writes the echoed prompt and the requested data about it before the first token.
    fn write_prompt(&mut self, choice: &Choice) {
        let request = &self.completion.request;
        let prompt = &request.prompts[choice.prompt];
        let scored = self.completion.scored.get(choice.prompt);
        let scored = scored.map_or(&[][..], Vec::as_slice);
        let tokenizer = self.completion.shared.engine.tokenizer();
        if !request.echo && request.prompt_logprobs.is_none() && !request.return_token_ids {
            return;
        }
        let text = if request.echo { &*prompt.text } else { "" };
        let logprobs = request.logprobs.filter(|_| request.echo).map(|count| {
            let mut lists = Logprobs::new(count);
            lists.push_prompt(tokenizer, prompt, scored);
            lists.to_json()
        });
        let mut entry = json!({
            "index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": null,
        });
        if let Some(entry) = entry.as_object_mut() {
            if let Some(count) = request.prompt_logprobs {
                let lists = prompt_logprobs(tokenizer, prompt, scored, count);
                entry.insert("prompt_logprobs".into(), lists);
            }
            if request.return_token_ids {
                entry.insert("prompt_token_ids".into(), json!(prompt.ids));
                entry.insert("token_ids".into(), json!([]));
            }
        }
        self.send(vec![entry]);
    }

    fn write(&mut self, choice: &mut Choice, piece: &str) {
        let request = &self.completion.request;
        let tokenizer = self.completion.shared.engine.tokenizer();
        let tokens = choice.take_unsent_tokens();
        let echoed = request.echo.then(|| &request.prompts[choice.prompt]);
        let before = echoed.map_or(0, |prompt| prompt.text.chars().count());
        let logprobs = request
            .logprobs
            .filter(|_| !tokens.is_empty())
            .map(|count| {
                let mut lists = Logprobs::new(count);
                for (token, offset) in &tokens {
                    lists.push_sampled(tokenizer, token, before + offset);
                }
                lists.to_json()
            });
        let mut entry = json!({
            "index": choice.index,
            "text": piece,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_string,
        });
        if request.return_token_ids {
            entry["token_ids"] = tokens.iter().map(|(token, _)| token.id).collect();
        }
        self.send(vec![entry]);
    }

    fn finish(&mut self) {
        let usage = usage(&self.completion, &self.finished_choices);
        if self.completion.request.include_usage {
            let mut chunk = self.chunk(Vec::new());
            chunk["usage"] = json!(usage.to_completion_usage());
            self.out.push_json(&chunk);
        }
        self.write_done();
    }

    fn write_done(&mut self) {
        self.out.push_text("[DONE]");
        self.finished = true;
    }

    fn send(&mut self, choices: Vec<Value>) {
        let chunk = self.chunk(choices);
        self.out.push_json(&chunk);
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let completion = &self.completion;
        let mut chunk = json!({
            "id": completion.id,
            "object": "text_completion",
            "created": completion.created,
            "model": completion.model,
            "system_fingerprint": completion.fingerprint,
            "choices": choices,
        });
        if completion.request.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}
