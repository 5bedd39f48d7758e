//! `POST /tokenize` and `POST /detokenize`, as in vLLM. Nothing is generated or recorded.

use axum::Json;
use axum::extract::Request;
use clawhost_engine::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::Chat;
use crate::completions::token_ids;
use crate::error::ApiError;
use crate::parse::{missing, parse};
use crate::reply::{Dialect, prompt_ids, run_with_body};
use crate::shared::Client;

/// Text to tokenize. With `messages` instead of `prompt`, the fields of a chat completion that change the prompt apply too.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TokenizeRequest")]
pub(crate) struct TokenizeFields {
    /// Default: the served model.
    model: Option<String>,
    prompt: Option<String>,
    /// Whether the tokenizer adds special tokens to the prompt. Default: true.
    add_special_tokens: Option<bool>,
    /// Whether the response has the text of each token.
    return_token_strs: Option<bool>,
    /// A conversation, rendered by the chat template.
    #[schemars(with = "Option<Vec<crate::chat::ChatMessage>>", length(min = 1))]
    messages: Option<Value>,
    /// As in a chat completion.
    #[serde(rename = "add_generation_prompt")]
    _add_generation_prompt: Option<bool>,
    /// As in a chat completion.
    #[serde(rename = "continue_final_message")]
    _continue_final_message: Option<bool>,
}

/// Tokens to decode.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DetokenizeRequest")]
pub(crate) struct DetokenizeFields {
    /// Default: the served model.
    model: Option<String>,
    #[schemars(with = "Vec<u32>")]
    tokens: Vec<Value>,
}

/// The tokens of a prompt.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Tokens {
    count: usize,
    /// Tokens of a prompt and its reply.
    max_model_len: usize,
    tokens: Vec<u32>,
    /// The text of each token, on request.
    token_strs: Option<Vec<String>>,
}

/// Decoded tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Detokenized {
    prompt: String,
}

/// Tokenizes a `prompt`, or `messages` rendered by the chat template.
pub(crate) async fn tokenize(
    Client { shared, caller }: Client,
    request: Request,
) -> Result<Json<Tokens>, ApiError> {
    let tokens = run_with_body(&shared, caller, request, |request| {
        let fields: TokenizeFields = parse(request.body)?;
        request.resolve_model(fields.model.as_deref())?;
        let engine = &request.shared.engine;
        let ids = match (&fields.prompt, &fields.messages) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "messages",
                    "send either `prompt` or `messages`, not both",
                ));
            }
            (None, None) => return Err(missing("prompt")),
            (Some(prompt), None) => {
                encode_prompt(engine, prompt, fields.add_special_tokens.unwrap_or(true))?
            }
            (None, Some(_)) => {
                let (mut parsed, _) = Chat::parse(request)?;
                let ids = prompt_ids(engine, &mut parsed);
                ids.map_err(|error| error.param(Chat::PROMPT_FIELD))?
            }
        };
        let token_text = |id: &u32| {
            let text = engine.tokenizer().token(*id);
            text.expect("the tokenizer returned the token")
        };
        let token_strs =
            (fields.return_token_strs == Some(true)).then(|| ids.iter().map(token_text).collect());
        Ok(Tokens {
            count: ids.len(),
            max_model_len: engine.context(),
            tokens: ids,
            token_strs,
        })
    });
    Ok(Json(tokens.await?))
}

fn encode_prompt(engine: &Engine, text: &str, special: bool) -> Result<Vec<u32>, ApiError> {
    let tokenizer = engine.tokenizer();
    let ids = if special {
        tokenizer.encode_with_special_tokens(text)
    } else {
        tokenizer.encode(text)
    };
    ids.map_err(|error| ApiError::invalid("prompt", error.to_string()))
}

/// Decodes `tokens`, special tokens included.
pub(crate) async fn detokenize(
    Client { shared, caller }: Client,
    request: Request,
) -> Result<Json<Detokenized>, ApiError> {
    let text = run_with_body(&shared, caller, request, |request| {
        let fields: DetokenizeFields = parse(request.body)?;
        request.resolve_model(fields.model.as_deref())?;
        let engine = &request.shared.engine;
        let ids = token_ids(engine, &fields.tokens, "tokens")?;
        Ok(Detokenized {
            prompt: engine.tokenizer().decode_with_special(&ids),
        })
    });
    Ok(Json(text.await?))
}
