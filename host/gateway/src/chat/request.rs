//! A chat completion request: what the client asked for, checked.
//!
//! A field that changes the reply is either done or refused; a field that does not (`store`, `metadata`,
//! `service_tier`, …) is ignored, because clients send many of them.

use axum::http::HeaderMap;
use clawhost_policy::Sampling;
use serde_json::{Map, Value, json};

use super::tools::{self, Tools};
use super::{messages, sampling};
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Bytes of a session id.
const MAX_SESSION_ID: usize = 256;

/// A checked request.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Tools,
    pub(crate) sampling: Sampling,
    pub(crate) n: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    pub(crate) return_token_ids: bool,
    /// Further variables for the chat template.
    pub(crate) template: Map<String, Value>,
    pub(crate) session_header: Option<String>,
    pub(crate) session_body: Option<String>,
    pub(crate) turn_type: Option<String>,
    pub(crate) session_done: bool,
    pub(crate) user: Option<String>,
}

impl ChatRequest {
    /// Reads a body and the session headers. `defaults` are the model's own sampling settings.
    pub(crate) fn read(
        body: &Value,
        headers: &HeaderMap,
        defaults: &Sampling,
        max_choices: u32,
    ) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        refuse_unsupported(fields)?;
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
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            messages: messages::normalise(listed)?,
            tools: tools::read(fields)?,
            sampling,
            n: fields
                .integer("n", 1, i64::from(max_choices))?
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(1),
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage,
            logprobs,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            template: template_variables(fields)?,
            session_header: header(headers, "x-session-id")?
                .map(|id| session_id(&id, "X-Session-Id"))
                .transpose()?,
            session_body: fields
                .text("session_id")?
                .filter(|id| !id.trim().is_empty())
                .map(|id| session_id(id, "session_id"))
                .transpose()?,
            turn_type: turn_type(fields, headers)?,
            session_done: session_done(fields, headers)?,
            user: fields.text("user")?.map(str::to_owned),
        })
    }

    /// The sampling settings as the journal keeps them, with the seeds that were really used.
    pub(crate) fn sampling_json(&self, seeds: impl Iterator<Item = u64>) -> Value {
        let mut settings = json!(self.sampling);
        if let Some(settings) = settings.as_object_mut() {
            settings.insert("n".into(), self.n.into());
            settings.insert("seeds".into(), seeds.collect::<Vec<_>>().into());
        }
        settings
    }
}

fn refuse_unsupported(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    if let Some(format) = fields.value("response_format") {
        let kind = Fields::of(format, "response_format")?.required_text("type")?;
        if kind != "text" {
            let shown: String = kind.chars().take(40).collect();
            return Err(ApiError::unsupported(
                "response_format",
                format!(
                    "`response_format` of the type `{shown}` is not supported yet, because it needs constrained \
                     decoding; leave it out and ask for JSON in the prompt"
                ),
            ));
        }
    }
    if let Some(bias) = fields.value("logit_bias")
        && bias.as_object().is_none_or(|bias| !bias.is_empty())
    {
        return Err(ApiError::unsupported(
            "logit_bias",
            "`logit_bias` is not supported; leave it out",
        ));
    }
    for modality in fields.list("modalities")?.unwrap_or_default() {
        if modality != "text" {
            return Err(ApiError::unsupported(
                "modalities",
                "this model writes text only",
            ));
        }
    }
    for name in ["audio", "web_search_options"] {
        if fields.value(name).is_some() {
            return Err(ApiError::unsupported(
                name,
                format!("`{name}` is not supported; leave it out"),
            ));
        }
    }
    if fields.flag("continue_final_message")?.unwrap_or(false) {
        return Err(ApiError::unsupported(
            "continue_final_message",
            "continuing the last message is not supported; end the messages with a user or tool message",
        ));
    }
    Ok(())
}

/// Variables for the template from `chat_template_kwargs`, `enable_thinking` and `reasoning_effort`.
fn template_variables(fields: Fields<'_, '_>) -> Result<Map<String, Value>, ApiError> {
    let mut out = Map::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        if effort == "none" {
            out.insert("enable_thinking".into(), false.into());
        }
        out.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(thinking) = fields.flag("enable_thinking")? {
        out.insert("enable_thinking".into(), thinking.into());
    }
    match fields.value("chat_template_kwargs") {
        None => {}
        Some(Value::Object(given)) => {
            for reserved in ["messages", "tools", "add_generation_prompt"] {
                if given.contains_key(reserved) {
                    return Err(ApiError::invalid(
                        format!("chat_template_kwargs.{reserved}"),
                        format!(
                            "`{reserved}` is set from the request itself and cannot be replaced"
                        ),
                    ));
                }
            }
            out.extend(given.clone());
        }
        Some(other) => return Err(wrong_type("chat_template_kwargs", "an object", other)),
    }
    Ok(out)
}

fn session_id(id: &str, param: &str) -> Result<String, ApiError> {
    let id = id.trim();
    if id.len() > MAX_SESSION_ID || id.chars().any(char::is_control) {
        return Err(ApiError::invalid(
            param,
            format!("a session id has at most {MAX_SESSION_ID} bytes and no control characters"),
        ));
    }
    Ok(id.to_owned())
}

fn turn_type(fields: Fields<'_, '_>, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let given = match header(headers, "x-turn-type")? {
        Some(given) => Some(given),
        None => fields.text("turn_type")?.map(str::to_owned),
    };
    let Some(given) = given.map(|given| given.trim().to_ascii_lowercase()) else {
        return Ok(None);
    };
    match given.as_str() {
        "" => Ok(None),
        "main" | "side" => Ok(Some(given)),
        _ => Err(ApiError::invalid(
            "turn_type",
            "the turn type must be `main` or `side`; leave it out to have it inferred",
        )),
    }
}

fn session_done(fields: Fields<'_, '_>, headers: &HeaderMap) -> Result<bool, ApiError> {
    let truthy = |text: &str| {
        matches!(
            text.trim().to_ascii_lowercase().as_str(),
            "1" | "true" | "yes" | "on"
        )
    };
    if let Some(given) = header(headers, "x-session-done")? {
        return Ok(truthy(&given));
    }
    match fields.value("session_done") {
        None => Ok(false),
        Some(Value::Bool(done)) => Ok(*done),
        Some(Value::String(text)) => Ok(truthy(text)),
        Some(Value::Number(number)) => Ok(number.as_f64().is_some_and(|number| number != 0.0)),
        Some(other) => Err(wrong_type("session_done", "true or false", other)),
    }
}

/// A header as text; empty is the same as absent.
fn header(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::invalid(name, format!("the header `{name}` is not UTF-8")))?
        .trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
