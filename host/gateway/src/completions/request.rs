//! What a request for completions asks for, checked.

use clawhost_policy::{Engine, Sampling};

use super::prompt::{self, Prompt};
use crate::chat::sampling::drawing;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{Surface, refuse_unsupported};

/// OpenAI's own length where none is given.
const LENGTH: u32 = 16;

/// Most alternatives beside a token.
const MAX_LOGPROBS: i64 = 20;

/// A checked request.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) model: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) sampling: Sampling,
    /// Tokens to write; 0 only looks at the prompt.
    pub(super) length: u32,
    /// Texts for each prompt.
    pub(super) n: u32,
    pub(super) echo: bool,
    /// Alternatives beside each token, when log-probs are wanted at all.
    pub(super) logprobs: Option<u8>,
    /// The same for the tokens of the prompt, in vLLM's form.
    pub(super) prompt_logprobs: Option<u8>,
    pub(super) return_token_ids: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

impl Asked {
    /// Reads a body. `engine` has the tokenizer and the model's own sampling settings.
    pub(super) fn read(
        fields: Fields<'_, '_>,
        engine: &Engine,
        max_choices: u32,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields, Surface::Completions)?;
        let n = fields.integer("n", 1, i64::from(max_choices))?;
        let n = n.and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
        if let Some(best) = fields.integer("best_of", 1, i64::from(u32::MAX))?
            && best != i64::from(n)
        {
            return Err(ApiError::unsupported(
                "best_of",
                "`best_of` beside another `n` is not supported; ask for all of them with `n`",
            ));
        }
        let echo = fields.flag("echo")?.unwrap_or(false);
        let logprobs = alternatives(fields, "logprobs")?;
        let prompt_logprobs = alternatives(fields, "prompt_logprobs")?;
        let length = fields.integer("max_tokens", 0, i64::from(u32::MAX))?;
        let length = length.and_then(|length| u32::try_from(length).ok());
        let length = length.unwrap_or(LENGTH);
        if length == 0 && !echo && prompt_logprobs.is_none() {
            return Err(ApiError::invalid(
                "max_tokens",
                "`max_tokens` is 0, which asks for nothing unless the prompt is shown (`echo`) or scored (`prompt_logprobs`)",
            ));
        }
        let mut sampling = drawing(fields, engine.defaults())?;
        sampling.max_tokens = length.max(1);
        sampling.top_logprobs = logprobs.unwrap_or(0);
        let include_usage = match fields.value("stream_options") {
            None => false,
            Some(value) => Fields::of(value, "stream_options")?
                .flag("include_usage")?
                .unwrap_or(false),
        };
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            prompts: prompt::read(fields, engine, length)?,
            sampling,
            length,
            n,
            echo,
            logprobs,
            prompt_logprobs,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage,
        })
    }

    /// Alternatives beside each token of the prompts, when these must be scored.
    pub(super) fn scored(&self) -> Option<u8> {
        let echoed = self.logprobs.filter(|_| self.echo);
        match (echoed, self.prompt_logprobs) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0).max(other.unwrap_or(0))),
        }
    }
}

/// A number of alternatives. `true`, which some clients send, asks for none beside the token itself.
fn alternatives(fields: Fields<'_, '_>, name: &str) -> Result<Option<u8>, ApiError> {
    if let Some(flag) = fields.value(name).and_then(serde_json::Value::as_bool) {
        return Ok(flag.then_some(0));
    }
    let count = fields.integer(name, 0, MAX_LOGPROBS)?;
    Ok(count.and_then(|count| u8::try_from(count).ok()))
}
