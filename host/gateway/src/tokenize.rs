//! `POST /tokenize` and `POST /detokenize`: text or a conversation as tokens, and back, as vLLM has them. Nothing is
//! generated and nothing recorded.

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
use crate::reply::{Arriving, Dialect, prompt_ids};

/// The tokens of a `prompt`, or of `messages` as the chat template renders them.
pub(crate) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    answer(shared, caller, request, |request, fields| {
        let engine = &request.shared.engine;
        let ids = match (fields.value("prompt"), fields.value("messages")) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "messages",
                    "there is a `prompt` and there are `messages`; leave one of them out",
                ));
            }
            (None, None) => return Err(fields.missing("prompt")),
            (Some(_), None) => of_text(engine, fields)?,
            (None, Some(_)) => {
                let (mut ask, _) = Chat::read(request)?;
                prompt_ids(engine, &mut ask).map_err(|error| error.param(Chat::PROMPT))?
            }
        };
        let mut answer = json!({
            "count": ids.len(),
            "max_model_len": engine.context(),
            "tokens": ids,
            "token_strs": null,
        });
        if fields.flag("return_token_strs")?.unwrap_or(false)
            && let Some(answer) = answer.as_object_mut()
        {
            let spelled = |id: &u32| engine.tokenizer().token(*id).unwrap_or_default();
            let spelled: Vec<String> = ids.iter().map(spelled).collect();
            answer.insert("token_strs".into(), spelled.into());
        }
        Ok(answer)
    })
    .await
}

fn of_text(engine: &Engine, fields: Fields<'_, '_>) -> Result<Vec<u32>, ApiError> {
    let text = fields.required_text("prompt")?;
    let tokenizer = engine.tokenizer();
    let ids = if fields.flag("add_special_tokens")?.unwrap_or(true) {
        tokenizer.encode_bare(text)
    } else {
        tokenizer.encode(text)
    };
    ids.map_err(|error| ApiError::invalid("prompt", error.to_string()))
}

/// The text of `tokens`, special tokens written out.
pub(crate) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    answer(shared, caller, request, |request, fields| {
        let engine = &request.shared.engine;
        let listed = fields
            .list("tokens")?
            .ok_or_else(|| fields.missing("tokens"))?;
        let ids = token_ids(engine, listed, "tokens")?;
        Ok(json!({"prompt": engine.tokenizer().decode_with_special(&ids)}))
    })
    .await
}

/// Reads a body, checks the model that it names, and answers off the threads that serve requests.
async fn answer(
    shared: Arc<Shared>,
    caller: Caller,
    request: Request,
    work: fn(&Arriving<'_>, Fields<'_, '_>) -> Result<Value, ApiError>,
) -> Result<Json<Value>, ApiError> {
    if let Err(error) = caller.require(Scope::Chat) {
        body::discard(request).await;
        return Err(error);
    }
    let headers = request.headers().clone();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    let answer = shared
        .ask(move |shared| {
            let fields = Fields::of(&body, "")?;
            let (engine, options) = (&shared.engine, &shared.options);
            let model = fields.text("model")?;
            shared
                .versions
                .resolve(engine, options, model, caller.adapter)?;
            let request = Arriving {
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
