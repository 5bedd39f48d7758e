//! A chat completion request: what the client asked for, checked.
//!
//! A field that changes the reply is either done or refused; a field that does not (`store`, `metadata`,
//! `service_tier`, …) is ignored, because clients send many of them.

use axum::http::HeaderMap;
use clawhost_policy::Sampling;
use serde_json::Value;

use super::{Chat, messages, sampling, tools};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{
    Ask, Cut, Dialect, Format, PromptEnd, Session, Surface, Truncation, refuse_unsupported,
    variables,
};

/// Reads a body and the session headers. `defaults` are the model's own sampling settings.
pub(super) fn read(
    body: &Value,
    headers: &HeaderMap,
    defaults: &Sampling,
    max_choices: u32,
) -> Result<(Ask, Chat), ApiError> {
    let fields = Fields::of(body, "")?;
    refuse_unsupported(fields, Surface::Chat)?;
    refuse_modalities(fields)?;
    let listed = fields
        .list("messages")?
        .ok_or_else(|| fields.missing("messages"))?;
    let (sampling, logprobs) = sampling::read(fields, defaults)?;
    let include_usage = match fields.value("stream_options") {
        None => false,
        Some(value) => Fields::of(value, "stream_options")?
            .flag("include_usage")?
            .unwrap_or(false),
    };
    let chat = Chat {
        stream: fields.flag("stream")?.unwrap_or(false),
        include_usage,
        logprobs,
        return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
    };
    let ask = Ask {
        model: fields.text("model")?.map(str::to_owned),
        messages: messages::normalise(listed)?,
        prompt_end: prompt_end(fields)?,
        truncation: Cut::read(fields)?.map_or(Truncation::None, Truncation::Tokens),
        add_special_tokens: fields.flag("add_special_tokens")?.unwrap_or(false),
        tools: tools::read(fields)?,
        format: Format::read(
            fields.value("response_format"),
            Chat::FORMAT,
            Some("json_schema"),
        )?,
        sampling,
        n: fields
            .integer("n", 1, i64::from(max_choices))?
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(1),
        shows_tokens: chat.logprobs || chat.return_token_ids,
        template: variables(fields, fields.text("reasoning_effort")?)?,
        session: Session::read(fields, headers)?,
        user: fields.text("user")?.map(str::to_owned),
        ..Ask::default()
    };
    Ok((ask, chat))
}

fn refuse_modalities(fields: Fields<'_, '_>) -> Result<(), ApiError> {
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

/// Reads `add_generation_prompt` and `continue_final_message`.
fn prompt_end(fields: Fields<'_, '_>) -> Result<PromptEnd, ApiError> {
    let begins = fields.flag("add_generation_prompt")?;
    let continues = fields.flag("continue_final_message")?.unwrap_or(false);
    match (begins, continues) {
        (Some(true), true) => Err(ApiError::invalid(
            "continue_final_message",
            "a reply either continues the last message or begins one; leave out `continue_final_message` or `add_generation_prompt`",
        )),
        (_, true) => Ok(PromptEnd::LastMessage),
        (Some(false), false) => Ok(PromptEnd::Messages),
        (_, false) => Ok(PromptEnd::Reply),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
