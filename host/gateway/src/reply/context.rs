//! Ids, timestamps, headers and token counts of a reply.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Serialize;

use super::abort_reason::AbortReason;
use super::{Choice, InferenceRequest};
use crate::admission::Slot;
use crate::shared::Shared;

/// A reply in progress.
pub(super) struct Reply {
    pub(super) context: ReplyContext,
    pub(super) choices: Vec<Choice>,
    pub(super) abort_reason: Arc<AbortReason>,
    /// Held until the reply is generated, so that a stream counts toward the concurrency limit.
    pub(super) slot: Slot,
}

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
        .map(|(name, text)| {
            // A session id may be any UTF-8 without control characters; a header carries its bytes.
            let value = HeaderValue::from_bytes(text.as_bytes());
            let value = value.expect("the text has no control characters");
            (HeaderName::from_static(name), value)
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
    pub(crate) fn to_completion_usage(&self) -> CompletionUsage {
        CompletionUsage {
            prompt_tokens: self.prompt,
            completion_tokens: self.completion,
            total_tokens: self.prompt + self.completion,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: self.cached,
            },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: self.reasoning,
            },
        }
    }
}

/// Token counts of a chat completion or text completion.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionUsage {
    prompt_tokens: usize,
    /// Of all choices.
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct PromptTokensDetails {
    /// Tokens found in the prefix cache.
    cached_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CompletionTokensDetails {
    reasoning_tokens: usize,
}
