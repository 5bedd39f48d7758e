//! Parses a chat completion request.
//!
//! A field that changes the reply is either supported or rejected; other fields (`store`, `metadata`, `service_tier`, …)
//! are ignored, because clients send many of them.

use axum::http::HeaderMap;
use clawhost_policy::SamplingParams;
use serde_json::Value;

use super::{Chat, messages, sampling, tools};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{
    Dialect, Endpoint, InferenceRequest, PromptEnd, SessionFields, TextFormat, TokenTruncation,
    Truncation, parse_template_variables, reject_unsupported,
};

/// Parses a body and the session headers. `defaults` are the default sampling parameters of the model.
pub(super) fn parse(
    body: &Value,
    headers: &HeaderMap,
    defaults: &SamplingParams,
    max_choices: u32,
) -> Result<(InferenceRequest, Chat), ApiError> {
    let fields = Fields::new(body, "")?;
    reject_unsupported(fields, Endpoint::Chat)?;
    reject_modalities(fields)?;
    let listed = fields
        .list("messages")?
        .ok_or_else(|| fields.missing("messages"))?;
    let (sampling, logprobs) = sampling::parse_chat_sampling(fields, defaults)?;
    let include_usage = match fields.value("stream_options") {
        None => false,
        Some(value) => Fields::new(value, "stream_options")?
            .flag("include_usage")?
            .unwrap_or(false),
    };
    let chat = Chat {
        stream: fields.flag("stream")?.unwrap_or(false),
        include_usage,
        logprobs,
        return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
    };
    let request = InferenceRequest {
        model: fields.text("model")?.map(str::to_owned),
        messages: messages::normalize(listed)?,
        prompt_end: prompt_end(fields)?,
        truncation: TokenTruncation::parse(fields)?.map_or(Truncation::None, Truncation::Tokens),
        add_special_tokens: fields.flag("add_special_tokens")?.unwrap_or(false),
        tools: tools::parse(fields)?,
        format: TextFormat::parse(
            fields.value("response_format"),
            Chat::FORMAT_FIELD,
            Some("json_schema"),
        )?,
        sampling,
        n: fields
            .integer("n", 1, i64::from(max_choices))?
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(1),
        shows_tokens: chat.logprobs || chat.return_token_ids,
        template: parse_template_variables(fields, fields.text("reasoning_effort")?)?,
        session: SessionFields::parse(fields, headers)?,
        user: fields.text("user")?.map(str::to_owned),
        ..InferenceRequest::default()
    };
    Ok((request, chat))
}

fn reject_modalities(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    for modality in fields.list("modalities")?.unwrap_or_default() {
        if modality != "text" {
            return Err(ApiError::unsupported(
                "modalities",
                "this model writes text only",
            ));
        }
    }
    Ok(())
}

/// Parses `add_generation_prompt` and `continue_final_message`.
fn prompt_end(fields: Fields<'_, '_>) -> Result<PromptEnd, ApiError> {
    let add_generation_prompt = fields.flag("add_generation_prompt")?;
    let continue_final_message = fields.flag("continue_final_message")?.unwrap_or(false);
    match (add_generation_prompt, continue_final_message) {
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
