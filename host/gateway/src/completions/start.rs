//! Starts a text completion: parses the request, scores the prompts if requested, submits to the engine.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use clawhost_engine::{GenerateRequest, LoadedVersion, Priority};
use clawhost_journal::now_ms;
use serde_json::Value;

use super::choice::Choice;
use super::request::CompletionRequest;
use super::score::{self, ScoredToken};
use crate::admission::Slot;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::shared::Shared;
use crate::{ids, reply, versions};

/// A text completion in progress.
pub(super) struct RunningCompletion {
    pub(super) shared: Arc<Shared>,
    pub(super) request: CompletionRequest,
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) fingerprint: String,
    adapter: String,
    /// Scored tokens per prompt; empty if no prompt logprobs are needed.
    pub(super) scored: Vec<Vec<ScoredToken>>,
    /// In order: all choices of the first prompt, then those of the next.
    pub(super) choices: Vec<Choice>,
    /// Held until generation has finished, so that a stream counts toward the concurrency limit. `None` once a stream
    /// holds it itself.
    pub(super) slot: Option<Slot>,
}

/// Parses the request and starts its choices, off the async threads.
pub(super) async fn start(
    shared: Arc<Shared>,
    body: Value,
    caller: Caller,
    arrived: Instant,
    slot: Slot,
) -> Result<RunningCompletion, ApiError> {
    let user = caller.name().map(|name| format!("key {name}"));
    let parse_handle = shared.clone();
    let parsed = shared.start_reply(move || {
        let request = CompletionRequest::parse(
            &body,
            &parse_handle.engine,
            parse_handle.options.max_choices,
        )?;
        let owner = parse_handle.adapter_owner(&caller, request.user.as_deref())?;
        let (served, model) =
            parse_handle.resolve_version(&caller, owner.as_ref(), request.model.as_deref())?;
        Ok((request, served, model))
    });
    let (request, served, model) = parsed.await?;
    if shared.stopping() {
        return Err(reply::shutting_down());
    }
    let scored = match request.prompt_logprob_count() {
        Some(top) => score::score(&shared.engine, &served, &request.prompts, top).await?,
        None => Vec::new(),
    };
    let shared_handle = shared.clone();
    let start = move || {
        let choices = start_choices(&shared, &request, &served, user.as_ref(), arrived)?;
        Ok(RunningCompletion {
            id: ids::response_id("cmpl-"),
            created: now_ms().div_euclid(1000),
            model,
            fingerprint: served.digest().to_owned(),
            adapter: versions::label(&served),
            scored,
            choices,
            slot: Some(slot),
            request,
            shared,
        })
    };
    shared_handle.start_reply(start).await
}

/// Submits all choices. On an error, those submitted so far are cancelled, since they are dropped.
fn start_choices(
    shared: &Arc<Shared>,
    request: &CompletionRequest,
    served: &LoadedVersion,
    user: Option<&String>,
    arrived: Instant,
) -> Result<Vec<Choice>, ApiError> {
    let mut choices = Vec::new();
    for (prompt_index, prompt) in request.prompts.iter().enumerate() {
        for choice_index in 0..request.n {
            let generation = if request.max_tokens == 0 {
                None
            } else {
                let mut sampling = request.sampling.clone();
                // Each choice has its own seed, derived from the seed of the request.
                sampling.seed = sampling
                    .seed
                    .map(|seed| seed.wrapping_add(u64::from(choice_index)));
                let request = GenerateRequest {
                    prompt: prompt.ids.clone(),
                    sampling,
                    version: served.clone(),
                    priority: Priority::Interactive,
                    user: user.cloned(),
                };
                let generation = shared.engine.generate(request);
                Some(
                    generation
                        .map_err(|error| reply::engine_error(&error, "prompt", "guided_json"))?,
                )
            };
            let index = choices.len();
            choices.push(Choice::new(
                shared,
                (index, prompt_index),
                if choice_index == 0 {
                    prompt.ids.len()
                } else {
                    0
                },
                generation,
                arrived,
            ));
        }
    }
    Ok(choices)
}

impl RunningCompletion {
    /// Response headers with the adapter version and `x-clawhost-collected: false`.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Ok(label) = HeaderValue::from_str(&self.adapter) {
            headers.insert(HeaderName::from_static("x-clawhost-adapter"), label);
        }
        headers.insert(
            HeaderName::from_static("x-clawhost-collected"),
            HeaderValue::from_static("false"),
        );
        headers
    }
}
