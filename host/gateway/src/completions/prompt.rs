//! The prompts of a request: one or many, as text or as tokens.

use clawhost_policy::Engine;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Most prompts in one request.
const MAX_PROMPTS: usize = 64;

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
}

/// Reads `prompt`: a string, a list of strings, a list of token ids, or a list of such lists.
pub(super) fn read(fields: Fields<'_, '_>, engine: &Engine) -> Result<Vec<Prompt>, ApiError> {
    let given = fields
        .value("prompt")
        .ok_or_else(|| fields.missing("prompt"))?;
    let prompts = match given {
        Value::Array(list) if list.iter().all(Value::is_number) && !list.is_empty() => {
            vec![tokens(engine, list, "prompt")?]
        }
        Value::Array(list) => {
            if list.len() > MAX_PROMPTS {
                let count = list.len();
                return Err(ApiError::invalid(
                    "prompt",
                    format!("`prompt` has {count} prompts; the limit is {MAX_PROMPTS}"),
                ));
            }
            let each = list.iter().enumerate().map(|(index, item)| {
                let path = format!("prompt[{index}]");
                match item {
                    Value::String(given) => text(engine, given, &path),
                    Value::Array(ids) => tokens(engine, ids, &path),
                    other => Err(wrong_type(
                        &path,
                        "a string or an array of token ids",
                        other,
                    )),
                }
            });
            each.collect::<Result<_, _>>()?
        }
        Value::String(given) => vec![text(engine, given, "prompt")?],
        other => return Err(wrong_type("prompt", "a string or an array", other)),
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid("prompt", "`prompt` has no prompt in it"));
    }
    Ok(prompts)
}

fn text(engine: &Engine, text: &str, path: &str) -> Result<Prompt, ApiError> {
    let ids = engine
        .tokenizer()
        .encode_bare(text)
        .map_err(|error| ApiError::invalid(path, error.to_string()))?;
    checked(engine, text.to_owned(), ids, path)
}

fn tokens(engine: &Engine, list: &[Value], path: &str) -> Result<Prompt, ApiError> {
    let vocab = engine.model().config().vocab_size;
    let ids = list.iter().enumerate().map(|(index, id)| {
        let known = id.as_u64().filter(|id| *id < vocab as u64);
        known.and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            ApiError::invalid(
                format!("{path}[{index}]"),
                format!("a token id is a whole number below {vocab}"),
            )
        })
    });
    let ids: Vec<u32> = ids.collect::<Result<_, _>>()?;
    let text = engine.tokenizer().decode_with_special(&ids);
    checked(engine, text, ids, path)
}

fn checked(engine: &Engine, text: String, ids: Vec<u32>, path: &str) -> Result<Prompt, ApiError> {
    let (count, holds) = (ids.len(), engine.context());
    if ids.is_empty() {
        return Err(ApiError::invalid(
            path,
            "an empty prompt has nothing to continue; send at least one token",
        ));
    }
    if count > holds {
        return Err(ApiError::bad_request(format!(
            "the prompt has {count} tokens and this model's context holds {holds}; shorten it"
        ))
        .param(path)
        .code("context_length_exceeded"));
    }
    Ok(Prompt { text, ids })
}
