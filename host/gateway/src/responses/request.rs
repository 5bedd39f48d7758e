//! A Responses request: what the client asked for, checked.

use clawhost_policy::Sampling;
use serde_json::Value;

use super::echo::Echo;
use super::{Responses, earlier, history, tools};
use crate::chat::sampling::drawing;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{
    Arriving, Ask, Dialect, Format, Session, Surface, Truncation, refuse_unsupported, variables,
};

/// Reads a request; the flag says whether the client wants a stream.
pub(super) fn read(request: &Arriving<'_>) -> Result<(Ask, bool), ApiError> {
    let fields = Fields::of(request.body, "")?;
    refuse_unsupported(fields, Surface::Responses)?;
    refuse_not_kept(fields)?;
    let mut session = Session::read(fields, request.headers)?;
    let previous = match fields.text("previous_response_id")? {
        None => None,
        Some(id) => {
            let (messages, of) = earlier::conversation(request.shared, request.caller, id)?;
            // Said outright, so there is nothing to infer from content.
            if session.header.is_none() && session.body.is_none() {
                session.body = of;
            }
            Some(messages)
        }
    };
    let messages = history::read(fields, previous)?;
    let reasoning = object(fields, "reasoning")?;
    let effort = match reasoning {
        None => None,
        Some(value) => Fields::of(value, "reasoning")?.text("effort")?,
    };
    let format = match object(fields, "text")? {
        None => None,
        Some(text) => {
            let text = Fields::of(text, "text")?;
            if text
                .text("verbosity")?
                .is_some_and(|wanted| wanted != "medium")
            {
                return Err(ApiError::unsupported(
                    "text.verbosity",
                    "`text.verbosity` is not supported: say in the instructions how long the reply should be",
                ));
            }
            text.value("format")
        }
    };
    object(fields, "metadata")?;
    fields.flag("store")?;
    let mut ask = Ask {
        model: fields.text("model")?.map(str::to_owned),
        messages,
        truncation: truncation(fields)?,
        tools: tools::read(fields)?,
        format: Format::read(format, Responses::FORMAT, None)?,
        sampling: sampling(fields, request.shared.engine.defaults())?,
        n: 1,
        template: variables(fields, effort)?,
        session,
        user: match fields.text("user")? {
            Some(user) => Some(user.to_owned()),
            None => fields.text("safety_identifier")?.map(str::to_owned),
        },
        ..Ask::default()
    };
    ask.notes = Echo::read(fields, &ask).into_notes();
    Ok((ask, fields.flag("stream")?.unwrap_or(false)))
}

/// Reads `truncation`.
fn truncation(fields: Fields<'_, '_>) -> Result<Truncation, ApiError> {
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

/// Refuses what would be done later, elsewhere or with what is not kept.
fn refuse_not_kept(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    let refuse =
        |name: &str, why: &str| Err(ApiError::unsupported(name, format!("`{name}`: {why}")));
    if fields.flag("background")?.unwrap_or(false) {
        return refuse(
            "background",
            "work in the background is not supported; leave it out",
        );
    }
    for name in ["conversation", "prompt"] {
        if fields.value(name).is_some() {
            return refuse(
                name,
                "nothing is kept here by that name; send `input`, or `previous_response_id` to continue a response",
            );
        }
    }
    let logprobs = fields
        .list("include")?
        .unwrap_or_default()
        .iter()
        .any(|wanted| wanted == "message.output_text.logprobs");
    if logprobs || fields.integer("top_logprobs", 0, 20)?.unwrap_or(0) > 0 {
        return refuse(
            if logprobs { "include" } else { "top_logprobs" },
            "log-probs are told by chat completions only",
        );
    }
    Ok(())
}

fn sampling(fields: Fields<'_, '_>, defaults: &Sampling) -> Result<Sampling, ApiError> {
    let mut sampling = drawing(fields, defaults)?;
    if let Some(most) = fields.integer("max_output_tokens", 1, i64::from(u32::MAX))? {
        sampling.max_tokens = u32::try_from(most).unwrap_or(u32::MAX);
    }
    Ok(sampling)
}

/// A field that must be an object where it is given.
fn object<'a>(fields: Fields<'a, '_>, name: &str) -> Result<Option<&'a Value>, ApiError> {
    let value = fields.value(name);
    if let Some(value) = value {
        Fields::of(value, name)?;
    }
    Ok(value)
}
