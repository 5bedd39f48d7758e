//! Ids, timestamps, headers and token counts of a reply.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::{Choice, InferenceRequest};
use crate::gateway::Shared;

/// The data of a reply that is known before its first token.
pub(crate) struct ReplyContext {
    pub(crate) shared: Arc<Shared>,
    /// The validated request.
    pub(crate) request: InferenceRequest,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: i64,
    pub(crate) model: String,
    /// Digest of the adapter, or of the base model: OpenAI's `system_fingerprint`.
    pub(crate) fingerprint: String,
    /// The client's name of the session, or its id.
    pub(crate) session: String,
    pub(super) turns: String,
    pub(super) adapter: String,
}

impl ReplyContext {
    /// Response headers with the session, turns and adapter version.
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
    /// Prompt tokens found in the prefix cache.
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    /// Completion tokens that are reasoning.
    pub(crate) reasoning: usize,
}

impl Usage {
    pub(super) fn add(&mut self, choice: &Choice) {
        self.prompt = self.prompt.max(choice.prompt_tokens);
        self.cached = self.cached.max(choice.cached_tokens);
        self.completion += choice.completion_tokens();
        self.reasoning += choice.reasoning_tokens;
    }

    /// The `usage` object of chat completions and text completions.
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
