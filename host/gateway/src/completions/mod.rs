//! `POST /v1/completions`: OpenAI's text completions, which continue a prompt of text or tokens without a chat template.
//!
//! A text completion has no next message and so nothing to train on. It is served and counted in the metrics, but not
//! recorded; the response has no session and carries `x-clawhost-collected: false`.
//!
//! | module | contents |
//! |---|---|
//! | `request`, `prompt` | parsing of the request and its prompts |
//! | `score` | logprobs of prompt tokens |
//! | `start` | submission to the engine |
//! | `choice`, `logprobs` | one choice while it is generated; logprobs in the format of text completions |
//! | `full`, `stream` | non-streaming and streaming responses |

mod choice;
mod full;
mod logprobs;
mod prompt;
mod request;
mod score;
mod start;
mod stream;

pub(crate) use full::Completion;
pub(crate) use prompt::{PromptFields, token_ids};
pub(crate) use request::CompletionFields;

use std::time::Instant;

use axum::Extension;
use axum::extract::Request;
use axum::response::Response;

use crate::admission::Slot;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Client;

/// Handles a text completion request, streaming or not.
pub(crate) async fn create(
    Client { shared, caller }: Client,
    Extension(slot): Extension<Slot>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let body = shared
        .read_json(&caller, Scope::Chat, request, usize::MAX)
        .await?;
    let completion = start::start(shared, body, caller, arrived, slot).await?;
    if completion.request.stream {
        Ok(stream::respond(completion))
    } else {
        full::respond(completion).await
    }
}
