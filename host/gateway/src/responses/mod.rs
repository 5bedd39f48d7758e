//! `POST /v1/responses`: OpenAI's Responses dialect, `GET` and `DELETE /v1/responses/{id}`, and
//! `POST /v1/responses/input_tokens`.
//!
//! What it records is what chat completions record, so that a session goes on when a client changes the dialect, and
//! `previous_response_id` may name any recorded reply. A response is not stored anywhere but in the journal, which is
//! also what it is read back from. It refuses tools of the server's side, background work, conversations kept by name,
//! references to items, log-probs, images and files.

mod earlier;
mod echo;
mod history;
mod items;
mod reply;
mod request;
mod tools;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::reply::{Arriving, Ask, Dialect, Ended, Known, Usage, count};

/// What this dialect needs to know to answer.
#[derive(Debug)]
pub(crate) struct Responses {
    stream: bool,
}

impl Dialect for Responses {
    const REPLY_ID: &'static str = "resp_";
    const CALL_ID: &'static str = "call_";
    const PROMPT: &'static str = "input";
    const FORMAT: &'static str = "text.format";
    type Events = reply::ResponseEvents;

    fn read(request: &Arriving<'_>) -> Result<(Ask, Self), ApiError> {
        let (ask, stream) = request::read(request)?;
        Ok((ask, Self { stream }))
    }

    fn streams(&self) -> bool {
        self.stream
    }

    fn whole(self, known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value {
        reply::body(known, ended, usage)
    }

    fn events(self, known: Known) -> Self::Events {
        reply::ResponseEvents::new(known)
    }
}

/// A response as it was recorded.
pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Chat)?;
    let Path(id) = path.map_err(|_| ApiError::invalid("id", "the id in the path is not UTF-8"))?;
    let found = shared
        .ask(move |shared| {
            let turn = earlier::find(shared, &caller, &id)?;
            turn.as_ref()
                .and_then(reply::recorded)
                .ok_or_else(|| earlier::unknown(&id))
        })
        .await?;
    Ok(Json(found))
}

/// Forgets a response: its request, its reply and whatever was made of them.
pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Chat)?;
    let Path(id) = path.map_err(|_| ApiError::invalid("id", "the id in the path is not UTF-8"))?;
    let key = caller.name().map(str::to_owned);
    let (deleted, forgotten) = shared
        .ask(move |shared| earlier::forget(shared, &caller, &id).map(|forgotten| (id, forgotten)))
        .await?;
    tracing::info!(response = deleted, session = %forgotten.session, key, "a response was forgotten");
    Ok(Json(
        json!({"id": deleted, "object": "response", "deleted": true}),
    ))
}

/// How many tokens the prompt of a request has; nothing is generated and nothing recorded.
pub(crate) async fn input_tokens(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let read = |request: &Arriving<'_>| request::read(request).map(|(ask, _)| ask);
    let tokens = count(shared, caller, request, read, Responses::PROMPT).await?;
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": tokens}),
    ))
}
