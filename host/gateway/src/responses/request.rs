//! Parses a Responses request.

use clawhost_policy::SamplingParams;
use serde_json::Value;

use super::echo::RequestEcho;
use super::{Responses, history, previous, tools};
use crate::chat::sampling::parse_sampling;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{
    Dialect, Endpoint, InferenceRequest, RawRequest, SessionFields, TextFormat, Truncation,
    parse_template_variables, reject_unsupported,
};

/// Parses a request; the flag is `stream`.
pub(super) fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, bool), ApiError> {
    let fields = Fields::new(raw.body, "")?;
    reject_unsupported(fields, Endpoint::Responses)?;
    reject_stateful_fields(fields)?;
    let mut session = SessionFields::parse(fields, raw.headers)?;
    let previous = match fields.text("previous_response_id")? {
        None => None,
        Some(id) => {
            let (messages, session_id) = previous::load_conversation(raw.shared, raw.caller, id)?;
            // The session of the previous response; no matching by content is needed.
            if session.header.is_none() && session.body.is_none() {
                session.body = session_id;
            }
            Some(messages)
        }
    };
    let messages = history::parse(fields, previous)?;
    let reasoning = optional_object(fields, "reasoning")?;
    let effort = match reasoning {
        None => None,
        Some(value) => Fields::new(value, "reasoning")?.text("effort")?,
    };
    let format = match optional_object(fields, "text")? {
        None => None,
        Some(text) => {
            let text = Fields::new(text, "text")?;
            if text.text("verbosity")?.is_some_and(|name| name != "medium") {
                return Err(ApiError::unsupported(
                    "text.verbosity",
                    "`text.verbosity` is not supported; specify the length of the reply in the instructions",
                ));
            }
            text.value("format")
        }
    };
    optional_object(fields, "metadata")?;
    fields.flag("store")?;
    let mut request = InferenceRequest {
        model: fields.text("model")?.map(str::to_owned),
        messages,
        truncation: parse_truncation(fields)?,
        tools: tools::parse(fields)?,
        format: TextFormat::parse(format, Responses::FORMAT_FIELD, None)?,
        sampling: parse_response_sampling(fields, raw.shared.engine.defaults())?,
        n: 1,
        template: parse_template_variables(fields, effort)?,
        session,
        user: match fields.text("user")? {
            Some(user) => Some(user.to_owned()),
            None => fields.text("safety_identifier")?.map(str::to_owned),
        },
        ..InferenceRequest::default()
    };
    request.dialect_settings = RequestEcho::parse(fields, &request).into_dialect_settings();
    Ok((request, fields.flag("stream")?.unwrap_or(false)))
}

/// Parses `truncation`.
fn parse_truncation(fields: Fields<'_, '_>) -> Result<Truncation, ApiError> {
    match fields.text("truncation")? {
        None | Some("disabled") => Ok(Truncation::None),
        Some("auto") => Ok(Truncation::Messages),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            Err(ApiError::invalid(
                "truncation",
                format!("`truncation` is `{shown}`; it must be `auto` or `disabled`"),
            ))
        }
    }
}

/// Rejects background mode, stored conversations and prompts, and logprobs.
fn reject_stateful_fields(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    let reject =
        |name: &str, reason: &str| Err(ApiError::unsupported(name, format!("`{name}`: {reason}")));
    if fields.flag("background")?.unwrap_or(false) {
        return reject(
            "background",
            "background mode is not supported; leave it out",
        );
    }
    for name in ["conversation", "prompt"] {
        if fields.value(name).is_some() {
            return reject(
                name,
                "not supported; send `input`, or `previous_response_id` to continue a response",
            );
        }
    }
    let logprobs = fields
        .list("include")?
        .unwrap_or_default()
        .iter()
        .any(|name| name == "message.output_text.logprobs");
    if logprobs || fields.integer("top_logprobs", 0, 20)?.unwrap_or(0) > 0 {
        return reject(
            if logprobs { "include" } else { "top_logprobs" },
            "only chat completions return logprobs",
        );
    }
    Ok(())
}

fn parse_response_sampling(
    fields: Fields<'_, '_>,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    let mut sampling = parse_sampling(fields, defaults)?;
    if let Some(most) = fields.integer("max_output_tokens", 1, i64::from(u32::MAX))? {
        sampling.max_tokens = u32::try_from(most).unwrap_or(u32::MAX);
    }
    Ok(sampling)
}

/// A field that must be an object if present.
fn optional_object<'a>(fields: Fields<'a, '_>, name: &str) -> Result<Option<&'a Value>, ApiError> {
    let value = fields.value(name);
    if let Some(value) = value {
        Fields::new(value, name)?;
    }
    Ok(value)
}
