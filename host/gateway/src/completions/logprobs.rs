//! Logprobs in the format of text completions: four lists of the same length.

use std::fmt::Write as _;

use clawhost_chat::{Detokenizer, Tokenizer};
use clawhost_engine::SampledToken;
use serde_json::{Map, Value, json};

use super::prompt::Prompt;
use super::score::ScoredToken;

/// The lists. `text_offset` counts characters from the beginning of the choice's text.
#[derive(Debug, Default)]
pub(super) struct Logprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    /// Requested number of alternatives.
    count: u8,
}

impl Logprobs {
    pub(super) fn new(count: u8) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }

    /// Adds the tokens of an echoed prompt. The first has no logprob.
    pub(super) fn push_prompt(
        &mut self,
        tokenizer: &std::sync::Arc<Tokenizer>,
        prompt: &Prompt,
        scored: &[ScoredToken],
    ) {
        let mut stream = Detokenizer::new(tokenizer.clone()).with_special_tokens(true);
        let mut offset = 0;
        for (index, id) in prompt.ids.iter().enumerate() {
            let logprobs = index.checked_sub(1).and_then(|before| scored.get(before));
            self.push(
                tokenizer,
                *id,
                logprobs.map(|s| (s.logprob, &*s.top)),
                offset,
            );
            offset += stream.push(*id).chars().count();
        }
    }

    /// Adds a sampled token with the number of characters before it.
    pub(super) fn push_sampled(
        &mut self,
        tokenizer: &Tokenizer,
        token: &SampledToken,
        offset: usize,
    ) {
        let logprobs = Some((token.model_logprob, &*token.top));
        self.push(tokenizer, token.id, logprobs, offset);
    }

    fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        logprobs: Option<(f32, &[(u32, f32)])>,
        offset: usize,
    ) {
        self.tokens.push(token_text(tokenizer, id).into());
        self.text_offset.push(offset);
        let Some((logprob, top)) = logprobs else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        self.token_logprobs.push(json!(logprob));
        // The token itself is always included, as in OpenAI's API.
        let mut entries: Map<String, Value> = top
            .iter()
            .take(self.count.into())
            .map(|(id, logprob)| (token_text(tokenizer, *id), json!(logprob)))
            .collect();
        entries
            .entry(token_text(tokenizer, id))
            .or_insert_with(|| json!(logprob));
        self.top_logprobs.push(if self.count == 0 {
            Value::Null
        } else {
            entries.into()
        });
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": if self.count == 0 { Value::Null } else { json!(self.top_logprobs) },
            "text_offset": self.text_offset,
        })
    }
}

/// Prompt logprobs in vLLM's format: for each token but the first, the token itself and the most likely tokens by id.
pub(super) fn prompt_logprobs(
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    scored: &[ScoredToken],
    count: u8,
) -> Value {
    let entry = |id: u32, logprob: f32, rank: Option<usize>| {
        let entry =
            json!({"logprob": logprob, "rank": rank, "decoded_token": token_text(tokenizer, id)});
        (id.to_string(), entry)
    };
    let rest = prompt.ids.iter().skip(1).zip(scored).map(|(id, scored)| {
        let place = scored.top.iter().position(|(other, _)| other == id);
        let own = entry(*id, scored.logprob, place.map(|at| at + 1));
        let others = scored.top.iter().take(count.into()).enumerate();
        let others = others.map(|(at, (other, logprob))| entry(*other, *logprob, Some(at + 1)));
        let entries: Map<String, Value> = std::iter::once(own)
            .chain(others.filter(|(name, _)| *name != id.to_string()))
            .collect();
        Value::from(entries)
    });
    std::iter::once(Value::Null).chain(rest).collect()
}

/// A token as text; incomplete UTF-8 as `bytes:\x..`, as in OpenAI's API.
fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id);
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let mut out = "bytes:".to_owned();
        for byte in error.into_bytes() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
        out
    })
}
