//! `POST /v1/responses`: OpenAI's Responses API, `GET` and `DELETE /v1/responses/{id}`, and
//! `POST /v1/responses/input_tokens`.
//!
//! Turns are recorded in the same format as those of chat completions, so that a session continues when a client changes
//! the dialect, and `previous_response_id` accepts any recorded reply. Responses are stored only in the journal and
//! retrieved from it. Server-side tools, background mode, stored conversations, item references, logprobs, images and
//! files are rejected.

mod echo;
mod history;
mod items;
mod previous;
mod reply;
mod request;
mod tools;

pub(crate) use reply::Response;
pub(crate) use request::{ResponseFields, Responses};
pub(crate) use tools::ToolFields;

use axum::Json;
use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::keys::Scope;
use crate::reply::{
    Dialect, FinishedChoice, InferenceRequest, RawRequest, ReplyContext, Usage, count_prompt_tokens,
};
use crate::sessions::{PathResult, path_id};
use crate::shared::Client;

impl Dialect for Responses {
    const REPLY_ID_PREFIX: &'static str = "resp_";
    const CALL_ID_PREFIX: &'static str = "call_";
    const PROMPT_FIELD: &'static str = "input";
    const FORMAT_FIELD: &'static str = "text.format";
    type Writer = reply::ResponseWriter;

    fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, Self), ApiError> {
        request::parse(raw)
    }

    fn is_streaming(&self) -> bool {
        self.stream
    }

    fn response_body(
        self,
        context: &ReplyContext,
        finished: Vec<FinishedChoice>,
        usage: &Usage,
    ) -> Value {
        reply::body(context, finished, usage)
    }

    fn stream_writer(self, context: ReplyContext) -> Self::Writer {
        reply::ResponseWriter::new(context)
    }
}

/// Retrieves a recorded response.
pub(crate) async fn retrieve(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Chat)?;
    let id = path_id(path)?;
    let response = shared
        .run_blocking(move |shared| {
            let turn = previous::find_turn(shared, &caller, &id)?;
            turn.as_ref()
                .and_then(reply::recorded_response)
                .ok_or_else(|| previous::response_not_found(&id))
        })
        .await?;
    Ok(Json(response))
}

/// A deleted response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseDeleted {
    id: String,
    #[schemars(extend("const" = "response"))]
    object: &'static str,
    #[schemars(extend("const" = true))]
    deleted: bool,
}

/// The number of prompt tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InputTokens {
    #[schemars(extend("const" = "response.input_tokens"))]
    object: &'static str,
    input_tokens: usize,
}

/// Deletes a response: its request, its reply, and the records made from them.
pub(crate) async fn delete(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<ResponseDeleted>, ApiError> {
    caller.require(Scope::Chat)?;
    let id = path_id(path)?;
    let key = caller.name().map(str::to_owned);
    let (deleted, forgotten) = shared
        .run_blocking(move |shared| {
            previous::forget_response(shared, &caller, &id).map(|forgotten| (id, forgotten))
        })
        .await?;
    tracing::info!(response = deleted, session = %forgotten.session, key, "response deleted");
    Ok(Json(ResponseDeleted {
        id: deleted,
        object: "response",
        deleted: true,
    }))
}

/// Counts the prompt tokens of a request; nothing is generated or recorded.
pub(crate) async fn input_tokens(
    Client { shared, caller }: Client,
    request: Request,
) -> Result<Json<InputTokens>, ApiError> {
    let parse = |raw: &RawRequest<'_>| request::parse(raw).map(|(request, _)| request);
    let input_tokens =
        count_prompt_tokens(shared, caller, request, parse, Responses::PROMPT_FIELD).await?;
    Ok(Json(InputTokens {
        object: "response.input_tokens",
        input_tokens,
    }))
}
