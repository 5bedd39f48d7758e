//! The prompts of a request: one or many, as text or as tokens.

use clawhost_policy::Engine;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::reply::Cut;

/// Most prompts in one request.
const MAX_PROMPTS: usize = 64;

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
}

/// How prompts are read.
struct Reader<'a> {
    engine: &'a Engine,
    cut: Option<Cut>,
    add_special_tokens: bool,
    /// Tokens that are to be written.
    length: u32,
}

/// Reads `prompt`: a string, a list of strings, a list of token ids, or a list of such lists; and what else is said about
/// it. `length` tokens are to be written behind each.
pub(super) fn read(
    fields: Fields<'_, '_>,
    engine: &Engine,
    length: u32,
) -> Result<Vec<Prompt>, ApiError> {
    let reader = Reader {
        engine,
        cut: Cut::read(fields)?,
        add_special_tokens: fields.flag("add_special_tokens")?.unwrap_or(true),
        length,
    };
    let given = fields
        .value("prompt")
        .ok_or_else(|| fields.missing("prompt"))?;
    let prompts = match given {
        Value::Array(list) if list.iter().all(Value::is_number) && !list.is_empty() => {
            vec![reader.tokens(list, "prompt")?]
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
                    Value::String(given) => reader.text(given, &path),
                    Value::Array(ids) => reader.tokens(ids, &path),
                    other => Err(wrong_type(
                        &path,
                        "a string or an array of token ids",
                        other,
                    )),
                }
            });
            each.collect::<Result<_, _>>()?
        }
        Value::String(given) => vec![reader.text(given, "prompt")?],
        other => return Err(wrong_type("prompt", "a string or an array", other)),
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid("prompt", "`prompt` has no prompt in it"));
    }
    Ok(prompts)
}

impl Reader<'_> {
    fn text(&self, text: &str, path: &str) -> Result<Prompt, ApiError> {
        let tokenizer = self.engine.tokenizer();
        let ids = if self.add_special_tokens {
            tokenizer.encode_bare(text)
        } else {
            tokenizer.encode(text)
        };
        let ids = ids.map_err(|error| ApiError::invalid(path, error.to_string()))?;
        self.checked(text.to_owned(), ids, path)
    }

    fn tokens(&self, list: &[Value], path: &str) -> Result<Prompt, ApiError> {
        let ids = token_ids(self.engine, list, path)?;
        let text = self.engine.tokenizer().decode_with_special(&ids);
        self.checked(text, ids, path)
    }

    fn checked(&self, mut text: String, mut ids: Vec<u32>, path: &str) -> Result<Prompt, ApiError> {
        let holds = self.engine.context();
        if ids.is_empty() {
            return Err(ApiError::invalid(
                path,
                "an empty prompt has nothing to continue; send at least one token",
            ));
        }
        if let Some(cut) = self.cut
            && cut.apply(&mut ids, cut.most(holds, self.length))
        {
            text = self.engine.tokenizer().decode_with_special(&ids);
        }
        if ids.len() > holds {
            return Err(ApiError::context_exceeded(ids.len(), holds, None).param(path));
        }
        Ok(Prompt { text, ids })
    }
}

/// Token ids of the model's vocabulary.
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
