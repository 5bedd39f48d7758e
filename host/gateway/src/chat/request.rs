//! Parses a chat completion request.
//!
//! A field that changes the reply is either supported or rejected; other fields (`store`, `metadata`, `service_tier`, …)
//! are ignored, because clients send many of them.

use axum::http::HeaderMap;
use clawhost_engine::SamplingParams;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::messages::{self, ChatMessage};
use super::sampling::{TopLogprobs, parse_sampling};
use super::tools::{self, ToolFields};
use crate::error::ApiError;
use crate::parse;
use crate::parse::Count;
use crate::reply::{
    Dialect, Endpoint, FormatFields, InferenceRequest, PromptEnd, SessionFields, TextFormat,
    TokenTruncation, Truncation, parse_template_variables, reject_unsupported,
};

/// Fields of a chat completion request, besides the sampling parameters and what all dialects share.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatFields {
    /// Default: the served model.
    model: Option<String>,
    #[schemars(length(min = 1))]
    messages: Vec<ChatMessage>,
    /// Limits the reply, reasoning included. Default: that of the model.
    max_completion_tokens: Option<Count<1>>,
    /// The former name of `max_completion_tokens`.
    max_tokens: Option<Count<1>>,
    /// Number of choices.
    n: Option<Count<1>>,
    /// Whether the response has logprobs.
    logprobs: Option<bool>,
    /// Alternatives per token; needs `logprobs`.
    top_logprobs: Option<TopLogprobs>,
    /// Whether the response is a stream of events.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    response_format: Option<FormatFields>,
    /// A variable of the chat template; `none` disables thinking.
    reasoning_effort: Option<String>,
    /// Name of the end user.
    user: Option<String>,
    /// Whether the response has the token ids of the prompt and the choices.
    return_token_ids: Option<bool>,
    /// Whether the prompt ends with the header of a new assistant message. Default: true.
    add_generation_prompt: Option<bool>,
    /// Whether the reply continues the last message, which must be an assistant message.
    continue_final_message: Option<bool>,
    /// Whether the tokenizer adds special tokens. Default: false, the chat template writes them.
    add_special_tokens: Option<bool>,
    #[schemars(skip)]
    modalities: Option<Vec<String>>,
}

/// Settings of a chat completion that only this dialect has.
#[derive(Debug, Default)]
pub(crate) struct Chat {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    pub(crate) return_token_ids: bool,
}

/// Options of a stream.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct StreamOptions {
    /// Whether the stream ends with the token counts.
    include_usage: Option<bool>,
}

impl StreamOptions {
    pub(crate) fn include_usage(options: Option<Self>) -> bool {
        options.and_then(|options| options.include_usage) == Some(true)
    }
}

/// Parses a body and the session headers. `defaults` are the default sampling parameters of the model.
pub(super) fn parse(
    body: &Value,
    headers: &HeaderMap,
    defaults: &SamplingParams,
    max_choices: u32,
) -> Result<(InferenceRequest, Chat), ApiError> {
    reject_unsupported(body, Endpoint::Chat)?;
    let fields: ChatFields = parse::parse(body)?;
    if fields
        .modalities
        .iter()
        .flatten()
        .any(|modality| modality != "text")
    {
        return Err(ApiError::unsupported(
            "modalities",
            "this model writes text only",
        ));
    }
    let prompt_end = prompt_end(&fields)?;
    let n = check_choices(fields.n, max_choices)?;
    let mut sampling = parse_sampling(body, defaults)?;
    if let Some(max_tokens) = fields.max_completion_tokens.or(fields.max_tokens) {
        sampling.max_tokens = max_tokens.count();
    }
    let logprobs = fields.logprobs.unwrap_or(false);
    sampling.top_logprobs = fields.top_logprobs.map_or(0, TopLogprobs::top);
    if sampling.top_logprobs > 0 && !logprobs {
        return Err(ApiError::invalid(
            "top_logprobs",
            "`top_logprobs` needs `logprobs: true`",
        ));
    }
    let chat = Chat {
        stream: fields.stream.unwrap_or(false),
        include_usage: StreamOptions::include_usage(fields.stream_options),
        logprobs,
        return_token_ids: fields.return_token_ids.unwrap_or(false),
    };
    let request = InferenceRequest {
        model: fields.model,
        messages: messages::parse(fields.messages)?,
        prompt_end,
        truncation: TokenTruncation::parse(body)?.map_or(Truncation::None, Truncation::Tokens),
        add_special_tokens: fields.add_special_tokens.unwrap_or(false),
        tools: tools::parse(parse::parse::<ToolFields>(body)?)?,
        format: TextFormat::new(
            fields.response_format,
            Chat::FORMAT_FIELD,
            Some("json_schema"),
        )?,
        sampling,
        n,
        shows_tokens: chat.logprobs || chat.return_token_ids,
        template: parse_template_variables(body, fields.reasoning_effort.as_deref())?,
        session: SessionFields::parse(body, headers)?,
        user: fields.user,
        ..InferenceRequest::default()
    };
    Ok((request, chat))
}

/// Checks the number of choices against the configured limit. Default: 1.
pub(crate) fn check_choices(n: Option<Count<1>>, max: u32) -> Result<u32, ApiError> {
    let n = n.map_or(1, Count::count);
    if n > max {
        let message = format!("`n` is {n}; it must be from 1 to {max}");
        return Err(ApiError::invalid("n", message));
    }
    Ok(n)
}

/// Where the prompt ends: `add_generation_prompt` and `continue_final_message`.
fn prompt_end(fields: &ChatFields) -> Result<PromptEnd, ApiError> {
    let continue_final_message = fields.continue_final_message.unwrap_or(false);
    match (fields.add_generation_prompt, continue_final_message) {
        (Some(true), true) => Err(ApiError::invalid(
            "continue_final_message",
            "`continue_final_message` and `add_generation_prompt` cannot both be true; leave out one of them",
        )),
        (_, true) => Ok(PromptEnd::LastMessage),
        (Some(false), false) => Ok(PromptEnd::Messages),
        (_, false) => Ok(PromptEnd::Reply),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
