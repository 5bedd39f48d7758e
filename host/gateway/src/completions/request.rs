//! Parses a text completion request.

use clawhost_engine::{Engine, SamplingParams};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::prompt::{self, Prompt, PromptFields};
use crate::chat::sampling::{TopLogprobs, parse_sampling};
use crate::chat::{StreamOptions, check_choices};
use crate::error::ApiError;
use crate::parse::{Count, parse};
use crate::reply::{Endpoint, reject_unsupported};

/// OpenAI's default of `max_tokens`.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Fields of a text completion request, besides the prompt and the sampling parameters.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CompletionFields {
    /// Default: the served model.
    model: Option<String>,
    /// Tokens to generate; 0 only with `echo` or `prompt_logprobs`. Default: 16.
    max_tokens: Option<Count<0>>,
    /// Choices per prompt.
    n: Option<Count<1>>,
    /// If set, the same as `n`.
    best_of: Option<Count<1>>,
    /// Whether the text begins with the prompt.
    echo: Option<bool>,
    /// Alternatives per token. Default: no logprobs.
    logprobs: Option<Alternatives>,
    /// Alternatives per prompt token, in vLLM's format. Default: no logprobs.
    prompt_logprobs: Option<Alternatives>,
    /// Whether the response has the token ids of the prompt and the choices.
    return_token_ids: Option<bool>,
    /// Whether the response is a stream of events.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Name of the end user, whose adapter replies if each user has one.
    user: Option<String>,
}

/// A number of alternatives. `true`, which some clients send, means 0: only the token itself; `false` means no logprobs.
#[derive(Debug)]
struct Alternatives(Option<u8>);

impl<'de> Deserialize<'de> for Alternatives {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(flag) => Ok(Self(flag.then_some(0))),
            number => TopLogprobs::deserialize(number)
                .map(|top| Self(Some(top.top())))
                .map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Alternatives {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Alternatives".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["integer", "boolean"], "minimum": 0, "maximum": 20})
    }
}

/// A validated request.
#[derive(Debug, Clone)]
pub(super) struct CompletionRequest {
    pub(super) model: Option<String>,
    pub(super) user: Option<String>,
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
    pub(super) fn parse(body: &Value, engine: &Engine, max_choices: u32) -> Result<Self, ApiError> {
        reject_unsupported(body, Endpoint::Completions)?;
        let fields: CompletionFields = parse(body)?;
        let n = check_choices(fields.n, max_choices)?;
        if fields.best_of.is_some_and(|best| best.count() != n) {
            return Err(ApiError::unsupported(
                "best_of",
                "`best_of` must equal `n`; request all choices with `n`",
            ));
        }
        let echo = fields.echo.unwrap_or(false);
        let logprobs = fields.logprobs.and_then(|Alternatives(count)| count);
        let prompt_logprobs = fields.prompt_logprobs.and_then(|Alternatives(count)| count);
        let max_tokens = fields.max_tokens.map_or(DEFAULT_MAX_TOKENS, Count::count);
        if max_tokens == 0 && !echo && prompt_logprobs.is_none() {
            return Err(ApiError::invalid(
                "max_tokens",
                "`max_tokens` may be 0 only with `echo` or `prompt_logprobs`",
            ));
        }
        let mut sampling = parse_sampling(body, engine.defaults())?;
        sampling.max_tokens = max_tokens.max(1);
        sampling.top_logprobs = logprobs.unwrap_or(0);
        Ok(Self {
            model: fields.model,
            user: fields.user,
            prompts: prompt::parse(&parse::<PromptFields>(body)?, body, engine, max_tokens)?,
            sampling,
            max_tokens,
            n,
            echo,
            logprobs,
            prompt_logprobs,
            return_token_ids: fields.return_token_ids.unwrap_or(false),
            stream: fields.stream.unwrap_or(false),
            include_usage: StreamOptions::include_usage(fields.stream_options),
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
