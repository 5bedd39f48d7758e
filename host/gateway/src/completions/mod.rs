//! `POST /v1/completions`: OpenAI's text completions, which continue a prompt of text or tokens as it stands.
//!
//! A raw prompt is no conversation: nobody reacts to its text and nothing can be learned from it. So it is served
//! and counted, and neither recorded nor collected; the answer has no session and says so in a header.
//!
//! | module | idea |
//! |---|---|
//! | `request`, `prompt` | what is asked, checked; texts and tokens |
//! | `score` | log-probs of the prompts' own tokens |
//! | `begin` | taken on by the engine |
//! | `choice`, `shape` | one text from its first token to its end; log-probs in this dialect's form |
//! | `whole`, `stream` | the answer in one body, or as events |

mod begin;
mod choice;
mod prompt;
mod request;
mod score;
mod shape;
mod stream;
mod whole;

pub(crate) use prompt::token_ids;

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;

use crate::admission::Slot;
use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::gateway::Shared;

/// Answers a request for completions, streaming or not.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(slot): Extension<Slot>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Err(error) = caller.require(Scope::Chat) {
        body::discard(request).await;
        return Err(error);
    }
    let arrived = Instant::now();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    let begun = begin::begin(shared, body, caller, arrived, slot).await?;
    if begun.asked.stream {
        Ok(stream::respond(begun))
    } else {
        whole::respond(begun).await
    }
}
