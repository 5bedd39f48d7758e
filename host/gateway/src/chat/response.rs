//! The body of a non-streaming chat completion.

use serde_json::{Value, json};

use super::{Chat, logprobs};
use crate::reply::{Choice, FinishedChoice, ReplyContext, Usage};

/// The body with all choices.
pub(super) fn body(
    chat: &Chat,
    context: &ReplyContext,
    finished: Vec<FinishedChoice>,
    usage: &Usage,
) -> Value {
    let choices: Vec<Value> = finished
        .into_iter()
        .map(|finished| choice_json(chat, context, finished.choice))
        .collect();
    let mut body = json!({
        "id": context.id,
        "object": "chat.completion",
        "created": context.created,
        "model": context.model,
        "system_fingerprint": context.fingerprint,
        "session_id": context.session,
        "choices": choices,
        "usage": usage.to_json(),
    });
    if chat.return_token_ids
        && let Some(body) = body.as_object_mut()
    {
        body.insert("prompt_token_ids".into(), json!(context.prompt_ids));
    }
    body
}

fn choice_json(chat: &Chat, context: &ReplyContext, mut choice: Choice) -> Value {
    let tokens = choice.take_unsent_tokens();
    let logprobs = chat.logprobs.then(|| {
        let entries = logprobs::entries(
            context.shared.engine.tokenizer(),
            &tokens,
            context.request.sampling.top_logprobs,
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
