//! A messages request: what the client asked for, checked.

use clawhost_policy::Sampling;
use serde_json::{Map, Value, json};

use super::{Messages, history, tools};
use crate::chat::sampling::drawing;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::{
    Arriving, Ask, Dialect, Format, PromptEnd, Session, Surface, refuse_unsupported,
    temperature_and_top_p, variables,
};

/// Reads a request; the flag says whether the client wants a stream.
pub(super) fn read(request: &Arriving<'_>) -> Result<(Ask, bool), ApiError> {
    let fields = Fields::of(request.body, "")?;
    let mut ask = ask(request, fields)?;
    let most = fields
        .integer("max_tokens", 1, i64::from(u32::MAX))?
        .ok_or_else(|| fields.missing("max_tokens"))?;
    ask.sampling.max_tokens = u32::try_from(most).unwrap_or(u32::MAX);
    Ok((ask, fields.flag("stream")?.unwrap_or(false)))
}

/// Reads a request whose tokens are to be counted, which needs no `max_tokens`.
pub(super) fn read_to_count(request: &Arriving<'_>) -> Result<Ask, ApiError> {
    ask(request, Fields::of(request.body, "")?)
}

fn ask(request: &Arriving<'_>, fields: Fields<'_, '_>) -> Result<Ask, ApiError> {
    refuse_unsupported(fields, Surface::Messages)?;
    refuse_lists(fields)?;
    refuse_edits(fields)?;
    let listed = fields
        .list("messages")?
        .ok_or_else(|| fields.missing("messages"))?;
    let config = match fields.value("output_config") {
        None => None,
        Some(config) => Some(Fields::of(config, "output_config")?),
    };
    let format = match config.and_then(|config| config.value("format")) {
        Some(format) => Some(format),
        // Its name before it was one of several.
        None => fields.value("output_format"),
    };
    let messages = history::read(fields.value("system"), listed)?;
    let continues = messages.last().and_then(|last| last.get("role")) == Some(&json!("assistant"));
    Ok(Ask {
        format: Format::read(format, Messages::FORMAT, None)?,
        model: Some(fields.required_text("model")?.to_owned()),
        messages,
        prompt_end: if continues {
            PromptEnd::LastMessage
        } else {
            PromptEnd::Reply
        },
        tools: tools::read(fields)?,
        sampling: sampling(fields, request.shared.engine.defaults())?,
        n: 1,
        template: template(fields, config)?,
        session: Session::read(fields, request.headers)?,
        user: user(fields)?,
        ..Ask::default()
    })
}

fn refuse_lists(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    for name in ["mcp_servers", "container"] {
        let given = fields.value(name);
        if given.is_some_and(|given| given.as_array().is_none_or(|list| !list.is_empty())) {
            return Err(ApiError::unsupported(
                name,
                format!("`{name}` is not supported; leave it out"),
            ));
        }
    }
    Ok(())
}

/// Refuses edits of the conversation that would take something out of it.
fn refuse_edits(fields: Fields<'_, '_>) -> Result<(), ApiError> {
    let Some(management) = fields.value("context_management") else {
        return Ok(());
    };
    let management = Fields::of(management, "context_management")?;
    for (index, edit) in management
        .list("edits")?
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let path = format!("context_management.edits[{index}]");
        let edit = Fields::of(edit, &path)?;
        let thoughts = edit.required_text("type")?.starts_with("clear_thinking");
        if !thoughts || edit.value("keep").is_none_or(|keep| keep != "all") {
            return Err(ApiError::unsupported(
                edit.path_of("type"),
                "the conversation is not edited here; leave `context_management` out and send what fits",
            ));
        }
    }
    Ok(())
}

fn sampling(fields: Fields<'_, '_>, defaults: &Sampling) -> Result<Sampling, ApiError> {
    // This dialect's own bounds are narrower.
    temperature_and_top_p(fields, &mut defaults.clone(), 1.0)?;
    fields.integer("top_k", 0, i64::from(u32::MAX))?;
    let mut sampling = drawing(fields, defaults)?;
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

/// Template variables; `thinking` says whether the model is to think. Without it the template's own way counts.
fn template(
    fields: Fields<'_, '_>,
    config: Option<Fields<'_, '_>>,
) -> Result<Map<String, Value>, ApiError> {
    let effort = match config {
        None => None,
        Some(config) => config.text("effort")?,
    };
    let mut variables = variables(fields, effort)?;
    let Some(thinking) = fields.value("thinking") else {
        return Ok(variables);
    };
    let thinking = Fields::of(thinking, "thinking")?;
    // The budget is taken note of by nobody: a model here thinks as long as it does.
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

/// The person that `metadata.user_id` names.
fn user(fields: Fields<'_, '_>) -> Result<Option<String>, ApiError> {
    match fields.value("metadata") {
        None => Ok(None),
        Some(metadata) => Ok(Fields::of(metadata, "metadata")?
            .text("user_id")?
            .map(str::to_owned)),
    }
}
