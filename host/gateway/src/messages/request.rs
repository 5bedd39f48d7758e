//! Parses a messages request.

use clawhost_policy::SamplingParams;
use serde_json::{Map, Value, json};

use super::{Messages, history, tools};
use crate::chat::sampling::parse_sampling;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::{
    Dialect, Endpoint, InferenceRequest, PromptEnd, RawRequest, SessionFields, TextFormat,
    parse_temperature_and_top_p, parse_template_variables, reject_unsupported,
};

/// Parses a request; the flag is `stream`.
pub(super) fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, bool), ApiError> {
    let fields = Fields::new(raw.body, "")?;
    let mut request = parse_common(raw, fields)?;
    let most = fields
        .integer("max_tokens", 1, i64::from(u32::MAX))?
        .ok_or_else(|| fields.missing("max_tokens"))?;
    request.sampling.max_tokens = u32::try_from(most).unwrap_or(u32::MAX);
    Ok((request, fields.flag("stream")?.unwrap_or(false)))
}

/// Parses a `count_tokens` request, which has no `max_tokens`.
pub(super) fn parse_for_count(raw: &RawRequest<'_>) -> Result<InferenceRequest, ApiError> {
    parse_common(raw, Fields::new(raw.body, "")?)
}

fn parse_common(
    raw: &RawRequest<'_>,
    fields: Fields<'_, '_>,
) -> Result<InferenceRequest, ApiError> {
    reject_unsupported(fields, Endpoint::Messages)?;
    reject_server_tools(fields)?;
    reject_context_edits(fields)?;
    let listed = fields
        .list("messages")?
        .ok_or_else(|| fields.missing("messages"))?;
    let config = match fields.value("output_config") {
        None => None,
        Some(config) => Some(Fields::new(config, "output_config")?),
    };
    let format = match config.and_then(|config| config.value("format")) {
        Some(format) => Some(format),
        // The former name of the field.
        None => fields.value("output_format"),
    };
    let messages = history::parse(fields.value("system"), listed)?;
    let continues_last =
        messages.last().and_then(|last| last.get("role")) == Some(&json!("assistant"));
    Ok(InferenceRequest {
        format: TextFormat::parse(format, Messages::FORMAT_FIELD, None)?,
        model: Some(fields.required_text("model")?.to_owned()),
        messages,
        prompt_end: if continues_last {
            PromptEnd::LastMessage
        } else {
            PromptEnd::Reply
        },
        tools: tools::parse(fields)?,
        sampling: parse_message_sampling(fields, raw.shared.engine.defaults())?,
        n: 1,
        template: parse_template(fields, config)?,
        session: SessionFields::parse(fields, raw.headers)?,
        user: parse_user(fields)?,
        ..InferenceRequest::default()
    })
}

fn reject_server_tools(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    for name in ["mcp_servers", "container"] {
        let value = fields.value(name);
        if value.is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty())) {
            return Err(ApiError::unsupported(
                name,
                format!("`{name}` is not supported; leave it out"),
            ));
        }
    }
    Ok(())
}

/// Rejects context edits, which would remove content from the conversation.
fn reject_context_edits(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    let Some(management) = fields.value("context_management") else {
        return Ok(());
    };
    let management = Fields::new(management, "context_management")?;
    for (index, edit) in management
        .list("edits")?
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let path = format!("context_management.edits[{index}]");
        let edit = Fields::new(edit, &path)?;
        let is_thinking_edit = edit.required_text("type")?.starts_with("clear_thinking");
        if !is_thinking_edit || edit.value("keep").is_none_or(|keep| keep != "all") {
            return Err(ApiError::unsupported(
                edit.path_of("type"),
                "context edits are not supported; leave out `context_management` and send messages that fit the context",
            ));
        }
    }
    Ok(())
}

fn parse_message_sampling(
    fields: Fields<'_, '_>,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    // The limits of this dialect are narrower.
    parse_temperature_and_top_p(fields, &mut defaults.clone(), 1.0)?;
    fields.integer("top_k", 0, i64::from(u32::MAX))?;
    let mut sampling = parse_sampling(fields, defaults)?;
    if let Some(stops) = fields.list("stop_sequences")? {
        sampling.stop = stops
            .iter()
            .enumerate()
            .map(|(index, stop)| match stop {
                Value::String(stop) => Ok(stop.clone()),
                other => Err(wrong_type(
                    &format!("stop_sequences[{index}]"),
                    "a string",
                    other,
                )),
            })
            .collect::<Result<_, _>>()?;
    }
    Ok(sampling)
}

/// Parses the template variables. `thinking` enables or disables thinking; without it the template decides.
fn parse_template(
    fields: Fields<'_, '_>,
    config: Option<Fields<'_, '_>>,
) -> Result<Map<String, Value>, ApiError> {
    let effort = match config {
        None => None,
        Some(config) => config.text("effort")?,
    };
    let mut variables = parse_template_variables(fields, effort)?;
    let Some(thinking) = fields.value("thinking") else {
        return Ok(variables);
    };
    let thinking = Fields::new(thinking, "thinking")?;
    // `budget_tokens` is validated and ignored: the length of thinking cannot be limited.
    thinking.integer("budget_tokens", 1, i64::from(u32::MAX))?;
    let think = match thinking.required_text("type")? {
        "enabled" => true,
        "disabled" => false,
        "adaptive" => return Ok(variables),
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(ApiError::invalid(
                "thinking.type",
                format!(
                    "`thinking.type` is `{shown}`; it must be `enabled`, `disabled` or `adaptive`"
                ),
            ));
        }
    };
    variables
        .entry("enable_thinking")
        .or_insert_with(|| think.into());
    Ok(variables)
}

/// Parses `metadata.user_id`.
fn parse_user(fields: Fields<'_, '_>) -> Result<Option<String>, ApiError> {
    match fields.value("metadata") {
        None => Ok(None),
        Some(metadata) => Ok(Fields::new(metadata, "metadata")?
            .text("user_id")?
            .map(str::to_owned)),
    }
}
