//! A whole reply in one JSON body.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::Reply;
use super::choice::{Choice, Progress};
use super::logprobs;
use super::request::ChatRequest;
use crate::error::ApiError;
use crate::gateway::Shared;

/// Waits for all choices and answers with them.
pub(super) async fn respond(shared: &Arc<Shared>, reply: Reply) -> Result<Response, ApiError> {
    let Reply {
        head,
        chat,
        prompt_ids,
        choices,
        closing,
        slot,
    } = reply;
    let mut running: FuturesUnordered<_> = choices.into_iter().map(finish).collect();
    let mut usage = Usage::default();
    let mut written = Vec::with_capacity(running.len());
    while let Some(ended) = running.next().await {
        let mut choice = match ended {
            Ok(choice) => choice,
            Err(error) => {
                closing.because("another choice of the same reply failed");
                return Err(error);
            }
        };
        usage.add(&choice);
        written.push((choice.index, choice_json(shared, &chat, &mut choice)));
    }
    written.sort_by_key(|(index, _)| *index);
    shared.metrics.prompt_tokens(usage.prompt, usage.cached);
    let mut body = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "session_id": head.session,
        "choices": written.into_iter().map(|(_, choice)| choice).collect::<Vec<_>>(),
        "usage": usage.to_json(),
    });
    if chat.return_token_ids
        && let Some(body) = body.as_object_mut()
    {
        body.insert("prompt_token_ids".into(), json!(prompt_ids));
    }
    drop(slot);
    Ok((head.headers(), Json(body)).into_response())
}

async fn finish(mut choice: Choice) -> Result<Choice, ApiError> {
    loop {
        if let Progress::Ended(_) = choice.next().await? {
            return Ok(choice);
        }
    }
}

fn choice_json(shared: &Shared, chat: &ChatRequest, choice: &mut Choice) -> Value {
    let tokens = choice.take_fresh();
    let logprobs = chat.logprobs.then(|| {
        let entries = logprobs::entries(
            shared.engine.tokenizer(),
            &tokens,
            chat.sampling.top_logprobs,
        );
        json!({"content": entries, "refusal": null})
    });
    let mut out = json!({
        "index": choice.index,
        "message": choice.message(),
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason(),
    });
    if chat.return_token_ids
        && let Some(out) = out.as_object_mut()
    {
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        out.insert("token_ids".into(), json!(ids));
    }
    out
}

/// Token counts of a reply: the prompt once, the completions of all choices.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) cached: usize,
    completion: usize,
    reasoning: usize,
}

impl Usage {
    pub(super) fn add(&mut self, choice: &Choice) {
        self.prompt = self.prompt.max(choice.prompt_tokens);
        self.cached = self.cached.max(choice.cached_tokens);
        self.completion += choice.completion_tokens();
        self.reasoning += choice.reasoning_tokens;
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}
