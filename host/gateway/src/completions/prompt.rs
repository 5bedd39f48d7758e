//! Parses the prompts of a text completion: one or several, as text or token ids.

use clawhost_engine::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::parse::{missing, wrong_type};
use crate::reply::TokenTruncation;

/// Most prompts in one request.
const MAX_PROMPTS: usize = 64;

/// The prompts of a text completion and how they are tokenized.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromptFields {
    /// One prompt or several, as text or token ids.
    #[schemars(with = "PromptSchema")]
    prompt: Value,
    /// Whether the tokenizer adds special tokens to text. Default: true.
    add_special_tokens: Option<bool>,
}

/// Token ids of a prompt.
type Ids = Vec<u32>;

/// The forms of `prompt`.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum PromptSchema {
    Text(#[schemars(length(min = 1))] String),
    Texts(#[schemars(length(min = 1, max = MAX_PROMPTS), inner(length(min = 1)))] Vec<String>),
    Tokens(#[schemars(length(min = 1))] Ids),
    TokenLists(#[schemars(length(min = 1, max = MAX_PROMPTS), inner(length(min = 1)))] Vec<Ids>),
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
}

/// Parses and tokenizes prompts.
struct PromptParser<'a> {
    engine: &'a Engine,
    truncation: Option<TokenTruncation>,
    add_special_tokens: bool,
    /// Tokens to generate.
    max_tokens: u32,
}

/// Parses `prompt` (a string, a list of strings, a list of token ids, or a list of such lists) and the fields about its
/// tokenization and truncation. `max_tokens` tokens are generated after each prompt.
pub(super) fn parse(
    fields: &PromptFields,
    body: &Value,
    engine: &Engine,
    max_tokens: u32,
) -> Result<Vec<Prompt>, ApiError> {
    let parser = PromptParser {
        engine,
        truncation: TokenTruncation::parse(body)?,
        add_special_tokens: fields.add_special_tokens.unwrap_or(true),
        max_tokens,
    };
    let prompts = match &fields.prompt {
        Value::Null => return Err(missing("prompt")),
        Value::Array(list) if list.iter().all(Value::is_number) && !list.is_empty() => {
            vec![parser.tokens(list, "prompt")?]
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
                    Value::String(value) => parser.text(value, &path),
                    Value::Array(ids) => parser.tokens(ids, &path),
                    other => Err(wrong_type(
                        &path,
                        "a string or an array of token ids",
                        other,
                    )),
                }
            });
            each.collect::<Result<_, _>>()?
        }
        Value::String(value) => vec![parser.text(value, "prompt")?],
        other => return Err(wrong_type("prompt", "a string or an array", other)),
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid(
            "prompt",
            "`prompt` is empty; send at least one prompt",
        ));
    }
    Ok(prompts)
}

impl PromptParser<'_> {
    fn text(&self, text: &str, path: &str) -> Result<Prompt, ApiError> {
        let tokenizer = self.engine.tokenizer();
        let ids = if self.add_special_tokens {
            tokenizer.encode_with_special_tokens(text)
        } else {
            tokenizer.encode(text)
        };
        let ids = ids.map_err(|error| ApiError::invalid(path, error.to_string()))?;
        self.validate(text.to_owned(), ids, path)
    }

    fn tokens(&self, list: &[Value], path: &str) -> Result<Prompt, ApiError> {
        let ids = token_ids(self.engine, list, path)?;
        let text = self.engine.tokenizer().decode_with_special(&ids);
        self.validate(text, ids, path)
    }

    fn validate(
        &self,
        mut text: String,
        mut ids: Vec<u32>,
        path: &str,
    ) -> Result<Prompt, ApiError> {
        let context = self.engine.context();
        if ids.is_empty() {
            return Err(ApiError::invalid(
                path,
                "the prompt is empty; send at least one token",
            ));
        }
        if let Some(truncation) = self.truncation
            && truncation.apply(&mut ids, truncation.limit(context, self.max_tokens))
        {
            text = self.engine.tokenizer().decode_with_special(&ids);
        }
        if ids.len() > context {
            return Err(ApiError::context_exceeded(ids.len(), context, None).param(path));
        }
        Ok(Prompt { text, ids })
    }
}

/// Parses a list of token ids and checks that they are in the vocabulary.
pub(crate) fn token_ids(engine: &Engine, list: &[Value], path: &str) -> Result<Vec<u32>, ApiError> {
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
    ids.collect()
}
