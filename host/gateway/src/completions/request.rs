//! Parses a text completion request.

use clawhost_policy::{Engine, SamplingParams};

use super::prompt::{self, Prompt};
use crate::chat::sampling::parse_sampling;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{Endpoint, reject_unsupported};

/// OpenAI's default of `max_tokens`.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Most alternatives per token.
const MAX_LOGPROBS: i64 = 20;

/// A validated request.
#[derive(Debug, Clone)]
pub(super) struct CompletionRequest {
    pub(super) model: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) sampling: SamplingParams,
    /// Tokens to generate; 0 only echoes or scores the prompt.
    pub(super) max_tokens: u32,
    /// Choices per prompt.
    pub(super) n: u32,
    pub(super) echo: bool,
    /// Alternatives per token; `None` without logprobs.
    pub(super) logprobs: Option<u8>,
    /// The same for prompt tokens, in vLLM's format.
    pub(super) prompt_logprobs: Option<u8>,
    pub(super) return_token_ids: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

impl CompletionRequest {
    /// Parses a body. `engine` provides the tokenizer and the default sampling parameters.
    pub(super) fn parse(
        fields: Fields<'_, '_>,
        engine: &Engine,
        max_choices: u32,
    ) -> Result<Self, ApiError> {
        reject_unsupported(fields, Endpoint::Completions)?;
        let n = fields.integer("n", 1, i64::from(max_choices))?;
        let n = n.and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
        if let Some(best) = fields.integer("best_of", 1, i64::from(u32::MAX))?
            && best != i64::from(n)
        {
            return Err(ApiError::unsupported(
                "best_of",
                "`best_of` must equal `n`; request all choices with `n`",
            ));
        }
        let echo = fields.flag("echo")?.unwrap_or(false);
        let logprobs = parse_alternatives(fields, "logprobs")?;
        let prompt_logprobs = parse_alternatives(fields, "prompt_logprobs")?;
        let max_tokens = fields.integer("max_tokens", 0, i64::from(u32::MAX))?;
        let max_tokens = max_tokens.and_then(|max_tokens| u32::try_from(max_tokens).ok());
        let max_tokens = max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        if max_tokens == 0 && !echo && prompt_logprobs.is_none() {
            return Err(ApiError::invalid(
                "max_tokens",
                "`max_tokens` may be 0 only with `echo` or `prompt_logprobs`",
            ));
        }
        let mut sampling = parse_sampling(fields, engine.defaults())?;
        sampling.max_tokens = max_tokens.max(1);
        sampling.top_logprobs = logprobs.unwrap_or(0);
        let include_usage = match fields.value("stream_options") {
            None => false,
            Some(value) => Fields::new(value, "stream_options")?
                .flag("include_usage")?
                .unwrap_or(false),
        };
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            prompts: prompt::parse(fields, engine, max_tokens)?,
            sampling,
            max_tokens,
            n,
            echo,
            logprobs,
            prompt_logprobs,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage,
        })
    }

    /// Alternatives per prompt token; `None` if the prompts need no logprobs.
    pub(super) fn prompt_logprob_count(&self) -> Option<u8> {
        let echoed = self.logprobs.filter(|_| self.echo);
        match (echoed, self.prompt_logprobs) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0).max(other.unwrap_or(0))),
        }
    }
}

/// Parses a number of alternatives. `true`, which some clients send, means 0: only the token itself.
fn parse_alternatives(fields: Fields<'_, '_>, name: &str) -> Result<Option<u8>, ApiError> {
    if let Some(flag) = fields.value(name).and_then(serde_json::Value::as_bool) {
        return Ok(flag.then_some(0));
    }
    let count = fields.integer(name, 0, MAX_LOGPROBS)?;
    Ok(count.and_then(|count| u8::try_from(count).ok()))
}
