//! Non-streaming responses: the completion in one JSON body.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::choice::Choice;
use super::logprobs::{Logprobs, prompt_logprobs};
use super::start::RunningCompletion;
use crate::error::ApiError;
use crate::reply::{CompletionUsage, Usage};

/// A text completion.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Completion {
    id: String,
    #[schemars(extend("const" = "text_completion"))]
    object: &'static str,
    /// Unix seconds.
    created: i64,
    model: String,
    /// Digest of the adapter, or of the base model.
    system_fingerprint: String,
    #[schemars(length(min = 1))]
    choices: Vec<CompletionChoice>,
    usage: CompletionUsage,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct CompletionChoice {
    index: usize,
    text: String,
    /// On request.
    #[schemars(with = "Option<LogprobLists>")]
    logprobs: Option<Value>,
    #[schemars(with = "FinishReason")]
    finish_reason: Option<&'static str>,
    /// The stop string that ended the text, if any.
    stop_reason: Option<String>,
    /// For each prompt token, the logprobs of the likely tokens by id, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Value>,
    /// On request.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    /// On request.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// Four lists of the same length.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct LogprobLists {
    tokens: Vec<String>,
    /// `null` for the first token of an echoed prompt.
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    /// Characters before each token.
    text_offset: Vec<usize>,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum FinishReason {
    Stop,
    Length,
}

/// Waits for all choices and returns them in one body.
pub(super) async fn respond(mut completion: RunningCompletion) -> Result<Response, ApiError> {
    let running = std::mem::take(&mut completion.choices)
        .into_iter()
        .map(drive);
    let mut running: FuturesUnordered<_> = running.collect();
    let mut choices = Vec::with_capacity(running.len());
    while let Some(finished) = running.next().await {
        choices.push(finished?);
    }
    choices.sort_by_key(|choice| choice.index);
    let usage = usage(&completion, &choices);
    let body = Completion {
        id: completion.id.clone(),
        object: "text_completion",
        created: completion.created,
        model: completion.model.clone(),
        system_fingerprint: completion.fingerprint.clone(),
        choices: choices
            .iter_mut()
            .map(|choice| completion_choice(&completion, choice))
            .collect(),
        usage: usage.to_completion_usage(),
    };
    let headers = completion.headers();
    drop(completion.slot);
    Ok((headers, Json(body)).into_response())
}

/// Polls a choice until it is complete.
async fn drive(mut choice: Choice) -> Result<Choice, ApiError> {
    while choice.next().await?.is_some() {}
    Ok(choice)
}

/// Token counts: each prompt once, and all choices.
pub(super) fn usage(completion: &RunningCompletion, choices: &[Choice]) -> Usage {
    let mut cached = vec![0; completion.request.prompts.len()];
    for choice in choices {
        let most = &mut cached[choice.prompt];
        *most = choice.cached.max(*most);
    }
    Usage {
        prompt: completion.request.prompts.iter().map(|p| p.ids.len()).sum(),
        cached: cached.iter().sum(),
        completion: choices.iter().map(|choice| choice.tokens).sum(),
        reasoning: 0,
    }
}

fn completion_choice(completion: &RunningCompletion, choice: &mut Choice) -> CompletionChoice {
    let request = &completion.request;
    let tokenizer = completion.shared.engine.tokenizer();
    let tokens = choice.take_unsent_tokens();
    let prompt = &request.prompts[choice.prompt];
    let scored = completion
        .scored
        .get(choice.prompt)
        .map_or(&[][..], Vec::as_slice);
    let echoed = request.echo.then_some(prompt);
    let before = echoed.map_or(0, |prompt| prompt.text.chars().count());
    let logprobs = request.logprobs.map(|count| {
        let mut lists = Logprobs::new(count);
        if let Some(prompt) = echoed {
            lists.push_prompt(tokenizer, prompt, scored);
        }
        for (token, offset) in &tokens {
            lists.push_sampled(tokenizer, token, before + offset);
        }
        lists.to_json()
    });
    CompletionChoice {
        index: choice.index,
        text: format!(
            "{}{}",
            echoed.map_or("", |prompt| &prompt.text),
            choice.text
        ),
        logprobs,
        finish_reason: choice.finish,
        stop_reason: choice.stop_string.clone(),
        prompt_logprobs: request
            .prompt_logprobs
            .map(|count| prompt_logprobs(tokenizer, prompt, scored, count)),
        prompt_token_ids: request.return_token_ids.then(|| prompt.ids.clone()),
        token_ids: request
            .return_token_ids
            .then(|| tokens.iter().map(|(token, _)| token.id).collect()),
    }
}
