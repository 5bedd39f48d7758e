//! A whole reply in one JSON body.

use serde_json::{Value, json};

use super::{Chat, logprobs};
use crate::reply::{Choice, Ended, Known, Usage};

/// The body with all choices.
pub(super) fn body(chat: &Chat, known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value {
    let choices: Vec<Value> = ended
        .into_iter()
        .map(|ended| choice_json(chat, known, ended.choice))
        .collect();
    let mut body = json!({
        "id": known.id,
        "object": "chat.completion",
        "created": known.created,
        "model": known.model,
        "system_fingerprint": known.fingerprint,
        "session_id": known.session,
        "choices": choices,
        "usage": usage.to_json(),
    });
    if chat.return_token_ids
        && let Some(body) = body.as_object_mut()
    {
        body.insert("prompt_token_ids".into(), json!(known.prompt_ids));
    }
    body
}

fn choice_json(chat: &Chat, known: &Known, mut choice: Choice) -> Value {
    let tokens = choice.take_fresh();
    let logprobs = chat.logprobs.then(|| {
        let entries = logprobs::entries(
            known.shared.engine.tokenizer(),
            &tokens,
            known.ask.sampling.top_logprobs,
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
