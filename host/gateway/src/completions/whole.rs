//! The answer in one JSON body.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::begin::Begun;
use super::choice::Choice;
use super::shape::{Logprobs, prompt_logprobs};
use crate::error::ApiError;
use crate::reply::Usage;

/// Waits for all texts and answers with them.
pub(super) async fn respond(mut begun: Begun) -> Result<Response, ApiError> {
    let running = std::mem::take(&mut begun.choices).into_iter().map(finish);
    let mut running: FuturesUnordered<_> = running.collect();
    let mut choices = Vec::with_capacity(running.len());
    while let Some(ended) = running.next().await {
        choices.push(ended?);
    }
    choices.sort_by_key(|choice| choice.index);
    let usage = usage(&begun, &choices);
    let metrics = &begun.shared.metrics;
    metrics.prompt_tokens(usage.prompt, usage.cached);
    let written: Vec<Value> = choices
        .iter_mut()
        .map(|choice| choice_json(&begun, choice))
        .collect();
    let body = json!({
        "id": begun.id,
        "object": "text_completion",
        "created": begun.created,
        "model": begun.model,
        "system_fingerprint": begun.fingerprint,
        "choices": written,
        "usage": usage.to_json(),
    });
    let headers = begun.headers();
    drop(begun.slot);
    Ok((headers, Json(body)).into_response())
}

async fn finish(mut choice: Choice) -> Result<Choice, ApiError> {
    while choice.next().await?.is_some() {}
    Ok(choice)
}

/// The prompts once each, all texts.
pub(super) fn usage(begun: &Begun, choices: &[Choice]) -> Usage {
    let mut cached = vec![0; begun.asked.prompts.len()];
    for choice in choices {
        if let Some(most) = cached.get_mut(choice.prompt) {
            *most = choice.cached.max(*most);
        }
    }
    Usage {
        prompt: begun.asked.prompts.iter().map(|p| p.ids.len()).sum(),
        cached: cached.iter().sum(),
        completion: choices.iter().map(|choice| choice.tokens).sum(),
        reasoning: 0,
    }
}

fn choice_json(begun: &Begun, choice: &mut Choice) -> Value {
    let asked = &begun.asked;
    let tokenizer = begun.shared.engine.tokenizer();
    let tokens = choice.take_fresh();
    let prompt = asked.prompts.get(choice.prompt);
    let scored = begun
        .scored
        .get(choice.prompt)
        .map_or(&[][..], Vec::as_slice);
    let echoed = prompt.filter(|_| asked.echo);
    let before = echoed.map_or(0, |prompt| prompt.text.chars().count());
    let logprobs = asked.logprobs.map(|count| {
        let mut lists = Logprobs::new(count);
        if let Some(prompt) = echoed {
            lists.prompt(tokenizer, prompt, scored);
        }
        for (token, offset) in &tokens {
            lists.sampled(tokenizer, token, before + offset);
        }
        lists.to_json()
    });
    let mut out = json!({
        "index": choice.index,
        "text": format!("{}{}", echoed.map_or("", |prompt| &prompt.text), choice.text),
        "logprobs": logprobs,
        "finish_reason": choice.finish,
        "stop_reason": choice.stop,
    });
    if let (Some(out), Some(prompt)) = (out.as_object_mut(), prompt) {
        if let Some(count) = asked.prompt_logprobs {
            let lists = prompt_logprobs(tokenizer, prompt, scored, count);
            out.insert("prompt_logprobs".into(), lists);
        }
        if asked.return_token_ids {
            let ids: Vec<u32> = tokens.iter().map(|(token, _)| token.id).collect();
            out.insert("prompt_token_ids".into(), json!(prompt.ids));
            out.insert("token_ids".into(), json!(ids));
        }
    }
    out
}
