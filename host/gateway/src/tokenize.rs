//! `POST /tokenize` and `POST /detokenize`, as in vLLM. Nothing is generated or recorded.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use clawhost_policy::Engine;
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::body;
use crate::chat::Chat;
use crate::completions::token_ids;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::Shared;
use crate::reply::{Dialect, RawRequest, prompt_ids};

/// Tokenizes a `prompt`, or `messages` rendered by the chat template.
pub(crate) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    respond(shared, caller, request, |request, fields| {
        let engine = &request.shared.engine;
        let ids = match (fields.value("prompt"), fields.value("messages")) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "messages",
                    "send either `prompt` or `messages`, not both",
                ));
            }
            (None, None) => return Err(fields.missing("prompt")),
            (Some(_), None) => encode_prompt(engine, fields)?,
            (None, Some(_)) => {
                let (mut parsed, _) = Chat::parse(request)?;
                prompt_ids(engine, &mut parsed).map_err(|error| error.param(Chat::PROMPT_FIELD))?
            }
        };
        let mut body = json!({
            "count": ids.len(),
            "max_model_len": engine.context(),
            "tokens": ids,
            "token_strs": null,
        });
        if fields.flag("return_token_strs")?.unwrap_or(false)
            && let Some(body) = body.as_object_mut()
        {
            let token_text = |id: &u32| engine.tokenizer().token(*id).unwrap_or_default();
            let token_text: Vec<String> = ids.iter().map(token_text).collect();
            body.insert("token_strs".into(), token_text.into());
        }
        Ok(body)
    })
    .await
}

fn encode_prompt(engine: &Engine, fields: Fields<'_, '_>) -> Result<Vec<u32>, ApiError> {
    let text = fields.required_text("prompt")?;
    let tokenizer = engine.tokenizer();
    let ids = if fields.flag("add_special_tokens")?.unwrap_or(true) {
        tokenizer.encode_with_special_tokens(text)
    } else {
        tokenizer.encode(text)
    };
    ids.map_err(|error| ApiError::invalid("prompt", error.to_string()))
}

/// Decodes `tokens`, special tokens included.
pub(crate) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    respond(shared, caller, request, |request, fields| {
        let engine = &request.shared.engine;
        let list = fields
            .list("tokens")?
            .ok_or_else(|| fields.missing("tokens"))?;
        let ids = token_ids(engine, list, "tokens")?;
        Ok(json!({"prompt": engine.tokenizer().decode_with_special(&ids)}))
    })
    .await
}

/// Parses the body, checks its `model`, and runs `work` off the async threads.
async fn respond(
    shared: Arc<Shared>,
    caller: Caller,
    request: Request,
    work: fn(&RawRequest<'_>, Fields<'_, '_>) -> Result<Value, ApiError>,
) -> Result<Json<Value>, ApiError> {
    if let Err(error) = caller.require(Scope::Chat) {
        body::discard(request).await;
        return Err(error);
    }
    let headers = request.headers().clone();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    let answer = shared
        .run_blocking(move |shared| {
            let fields = Fields::new(&body, "")?;
            let (engine, options) = (&shared.engine, &shared.options);
            let model = fields.text("model")?;
            shared
                .versions
                .resolve(engine, options, model, caller.adapter)?;
            let request = RawRequest {
                shared,
                caller: &caller,
                headers: &headers,
                body: &body,
            };
            work(&request, fields)
        })
        .await?;
    Ok(Json(answer))
}
