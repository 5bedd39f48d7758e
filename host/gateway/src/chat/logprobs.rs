//! Logprobs in OpenAI's format: one entry per sampled token.
//!
//! The end-of-sequence token has an entry too, so that the entries, `token_ids` and the recorded logprobs have the same
//! length. The values are logprobs at temperature 1 before penalties, comparable with the alternatives; the journal
//! records those of the sampling distribution.

use clawhost_chat::Tokenizer;
use clawhost_engine::SampledToken;
use serde_json::{Value, json};

/// JSON value of a logprob of minus infinity, as in OpenAI's API.
const NEG_INFINITY: f32 = -9999.0;

/// The `content` entries for these tokens, with `top` alternatives each.
pub(super) fn entries(tokenizer: &Tokenizer, tokens: &[SampledToken], top: u8) -> Vec<Value> {
    tokens
        .iter()
        .map(|token| {
            let alternatives: Vec<Value> = token
                .top
                .iter()
                .take(usize::from(top))
                .map(|(id, logprob)| entry(tokenizer, *id, *logprob).into())
                .collect();
            let mut entry = entry(tokenizer, token.id, token.model_logprob);
            entry.insert("top_logprobs".into(), alternatives.into());
            entry.into()
        })
        .collect()
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> serde_json::Map<String, Value> {
    let bytes = tokenizer.token_bytes(id);
    let mut entry = serde_json::Map::new();
    entry.insert("token".into(), String::from_utf8_lossy(&bytes).into());
    entry.insert(
        "logprob".into(),
        json!(if logprob.is_finite() {
            logprob
        } else {
            NEG_INFINITY
        }),
    );
    entry.insert("bytes".into(), json!(bytes));
    entry
}
