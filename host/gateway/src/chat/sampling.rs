//! Parses sampling parameters over the defaults of the model: the fields that chat and text completions share.

use std::collections::BTreeMap;

use clawhost_policy::SamplingParams;
use serde_json::Value;

use super::structured_outputs;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::parse_temperature_and_top_p;

/// Most stop strings in a request.
const MAX_STOPS: usize = 16;
/// Largest stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Most token ids in `logit_bias` or `stop_token_ids`.
const MAX_LISTED_TOKENS: usize = 1024;
/// Most alternatives per token; OpenAI's limit.
const MAX_TOP_LOGPROBS: i64 = 20;

/// Parses the sampling parameters of a chat completion. The flag is `logprobs`.
pub(super) fn parse_chat_sampling(
    fields: Fields<'_, '_>,
    defaults: &SamplingParams,
) -> Result<(SamplingParams, bool), ApiError> {
    let mut sampling = parse_sampling(fields, defaults)?;
    let most = i64::from(u32::MAX);
    let bound = match fields.integer("max_completion_tokens", 1, most)? {
        Some(bound) => Some(bound),
        None => fields.integer("max_tokens", 1, most)?,
    };
    if let Some(bound) = bound.and_then(|bound| u32::try_from(bound).ok()) {
        sampling.max_tokens = bound;
    }
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(ApiError::invalid(
            "top_logprobs",
            "`top_logprobs` needs `logprobs: true`",
        ));
    }
    sampling.top_logprobs = top.and_then(|top| u8::try_from(top).ok()).unwrap_or(0);
    Ok((sampling, logprobs))
}

/// Parses all sampling parameters but the length and the logprobs.
pub(crate) fn parse_sampling(
    fields: Fields<'_, '_>,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    let mut sampling = defaults.clone();
    parse_temperature_and_top_p(fields, &mut sampling, 2.0)?;
    let set = |name: &str, min: f64, max: f64, target: &mut f32| -> Result<(), ApiError> {
        if let Some(number) = fields.number(name, min, max)? {
            *target = number as f32;
        }
        Ok(())
    };
    set("min_p", 0.0, 1.0, &mut sampling.min_p)?;
    set(
        "presence_penalty",
        -2.0,
        2.0,
        &mut sampling.presence_penalty,
    )?;
    set(
        "frequency_penalty",
        -2.0,
        2.0,
        &mut sampling.frequency_penalty,
    )?;
    set(
        "repetition_penalty",
        0.01,
        10.0,
        &mut sampling.repetition_penalty,
    )?;
    if let Some(top_k) = fields.integer("top_k", -1, i64::from(u32::MAX))? {
        // vLLM uses -1 for "disabled".
        sampling.top_k = u32::try_from(top_k).unwrap_or(0);
    }
    if let Some(seed) = fields.integer("seed", i64::MIN, i64::MAX)? {
        sampling.seed = Some(seed.cast_unsigned());
    }
    if let Some(stop) = fields.value("stop") {
        sampling.stop = parse_stop(fields, stop)?;
    }
    sampling.logit_bias = parse_logit_bias(fields)?;
    sampling.stop_token_ids = parse_token_ids(fields, "stop_token_ids", MAX_LISTED_TOKENS)?;
    sampling.allowed_token_ids = parse_allowed_token_ids(fields)?;
    sampling.bad_words = parse_strings(fields, "bad_words")?;
    sampling.include_stop_str_in_output =
        fields.flag("include_stop_str_in_output")?.unwrap_or(false);
    sampling.ignore_eos = fields.flag("ignore_eos")?.unwrap_or(false);
    sampling.show_special = !fields.flag("skip_special_tokens")?.unwrap_or(true);
    let least = fields.integer("min_tokens", 0, i64::from(u32::MAX))?;
    sampling.min_tokens = least.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    sampling.constraint = structured_outputs::parse(fields)?;
    Ok(sampling)
}

/// Parses `logit_bias`, an object with token ids as keys.
fn parse_logit_bias(fields: Fields<'_, '_>) -> Result<BTreeMap<u32, f32>, ApiError> {
    let Some(given) = fields.value("logit_bias") else {
        return Ok(BTreeMap::new());
    };
    let Value::Object(given) = given else {
        return Err(wrong_type("logit_bias", "an object", given));
    };
    if given.len() > MAX_LISTED_TOKENS {
        return Err(ApiError::invalid(
            "logit_bias",
            format!(
                "`logit_bias` has {} tokens; the limit is {MAX_LISTED_TOKENS}",
                given.len()
            ),
        ));
    }
    let each = given.iter().map(|(name, value)| {
        let shown: String = name.chars().take(40).collect();
        let path = format!("logit_bias.{shown}");
        let id: u32 = name.parse().map_err(|_| {
            ApiError::invalid(
                &path,
                format!("`{shown}` in `logit_bias` is not a token id"),
            )
        })?;
        let bias = value
            .as_f64()
            .filter(|bias| (-100.0..=100.0).contains(bias));
        let bias = bias
            .ok_or_else(|| ApiError::invalid(&path, "a bias must be a number from -100 to 100"))?;
        Ok((id, bias as f32))
    });
    each.collect()
}

/// Parses `allowed_token_ids`; there may be as many as the vocabulary has.
fn parse_allowed_token_ids(fields: Fields<'_, '_>) -> Result<Vec<u32>, ApiError> {
    let name = "allowed_token_ids";
    let allowed = parse_token_ids(fields, name, usize::MAX)?;
    if allowed.is_empty() && fields.value(name).is_some() {
        return Err(ApiError::invalid(
            name,
            "`allowed_token_ids` is empty, which allows no token; leave it out to allow all",
        ));
    }
    Ok(allowed)
}

/// Parses a list of strings.
fn parse_strings(fields: Fields<'_, '_>, name: &str) -> Result<Vec<String>, ApiError> {
    let listed = fields.list(name)?.unwrap_or_default();
    let each = listed.iter().enumerate().map(|(index, text)| match text {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong_type(&format!("{name}[{index}]"), "a string", other)),
    });
    each.collect()
}

/// Parses a list of at most `most` token ids.
fn parse_token_ids(fields: Fields<'_, '_>, name: &str, most: usize) -> Result<Vec<u32>, ApiError> {
    let listed = fields.list(name)?.unwrap_or_default();
    if listed.len() > most {
        return Err(ApiError::invalid(
            name,
            format!("`{name}` has {} tokens; the limit is {most}", listed.len()),
        ));
    }
    let each = listed.iter().enumerate().map(|(index, id)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::invalid(format!("{name}[{index}]"), "a token id is a whole number")
        })
    });
    each.collect()
}

fn parse_stop(fields: Fields<'_, '_>, stop: &Value) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        Value::String(text) => vec![text.clone()],
        Value::Array(_) => parse_strings(fields, "stop")?,
        other => return Err(wrong_type("stop", "a string or an array of strings", other)),
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::invalid(
            "stop",
            format!(
                "`stop` has {} strings; the limit is {MAX_STOPS}",
                stops.len()
            ),
        ));
    }
    if stops
        .iter()
        .any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES)
    {
        return Err(ApiError::invalid(
            "stop",
            format!("a stop string has 1 to {MAX_STOP_BYTES} bytes"),
        ));
    }
    Ok(stops)
}
