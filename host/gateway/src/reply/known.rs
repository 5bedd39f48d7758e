//! What an answer is made from, beside the words: names, times, the headers that carry them, and counts.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::{Ask, Choice};
use crate::gateway::Shared;

/// What is known of a reply before its first token.
pub(crate) struct Known {
    pub(crate) shared: Arc<Shared>,
    /// What was asked.
    pub(crate) ask: Ask,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: i64,
    pub(crate) model: String,
    /// Digest of the adapter (of the base model without one): changes exactly when what is served does.
    pub(crate) fingerprint: String,
    /// What the client calls its session.
    pub(crate) session: String,
    pub(super) turns: String,
    pub(super) adapter: String,
}

impl Known {
    /// Headers that say which session, turns and adapter this reply belongs to.
    pub(super) fn headers(&self) -> HeaderMap {
        [
            ("x-clawhost-session", &self.session),
            ("x-clawhost-turn", &self.turns),
            ("x-clawhost-adapter", &self.adapter),
        ]
        .into_iter()
        .filter_map(|(name, text)| {
            // A session id may be any UTF-8 without control characters; a header carries its bytes.
            let value = HeaderValue::from_bytes(text.as_bytes()).ok()?;
            Some((HeaderName::from_static(name), value))
        })
        .collect()
    }
}

/// Token counts of a reply: the prompt once, the completions of all choices.
#[derive(Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Of these, tokens that were still in memory.
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    /// Of these, tokens of thoughts.
    pub(crate) reasoning: usize,
}

impl Usage {
    pub(super) fn add(&mut self, choice: &Choice) {
        self.prompt = self.prompt.max(choice.prompt_tokens);
        self.cached = self.cached.max(choice.cached_tokens);
        self.completion += choice.completion_tokens();
        self.reasoning += choice.reasoning_tokens;
    }

    /// As chat completions and text completions tell it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}
