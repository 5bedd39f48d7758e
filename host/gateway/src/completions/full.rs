//! Non-streaming responses: the completion in one JSON body.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::choice::Choice;
use super::logprobs::{Logprobs, prompt_logprobs};
use super::start::RunningCompletion;
use crate::error::ApiError;
use crate::reply::Usage;

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
    let metrics = &completion.shared.metrics;
    metrics.add_prompt_tokens(usage.prompt, usage.cached);
    let choices_json: Vec<Value> = choices
        .iter_mut()
        .map(|choice| choice_json(&completion, choice))
        .collect();
    let body = json!({
        "id": completion.id,
        "object": "text_completion",
        "created": completion.created,
        "model": completion.model,
        "system_fingerprint": completion.fingerprint,
        "choices": choices_json,
        "usage": usage.to_json(),
    });
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
        if let Some(most) = cached.get_mut(choice.prompt) {
            *most = choice.cached.max(*most);
        }
    }
    Usage {
        prompt: completion.request.prompts.iter().map(|p| p.ids.len()).sum(),
        cached: cached.iter().sum(),
        completion: choices.iter().map(|choice| choice.tokens).sum(),
        reasoning: 0,
    }
}

fn choice_json(completion: &RunningCompletion, choice: &mut Choice) -> Value {
    let request = &completion.request;
    let tokenizer = completion.shared.engine.tokenizer();
    let tokens = choice.take_unsent_tokens();
    let prompt = request.prompts.get(choice.prompt);
    let scored = completion
        .scored
        .get(choice.prompt)
        .map_or(&[][..], Vec::as_slice);
    let echoed = prompt.filter(|_| request.echo);
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
    let mut out = json!({
        "index": choice.index,
        "text": format!("{}{}", echoed.map_or("", |prompt| &prompt.text), choice.text),
        "logprobs": logprobs,
        "finish_reason": choice.finish,
        "stop_reason": choice.stop_string,
    });
    if let (Some(out), Some(prompt)) = (out.as_object_mut(), prompt) {
        if let Some(count) = request.prompt_logprobs {
            let lists = prompt_logprobs(tokenizer, prompt, scored, count);
            out.insert("prompt_logprobs".into(), lists);
        }
        if request.return_token_ids {
            let ids: Vec<u32> = tokens.iter().map(|(token, _)| token.id).collect();
            out.insert("prompt_token_ids".into(), json!(prompt.ids));
            out.insert("token_ids".into(), json!(ids));
        }
    }
    out
}
