//! `POST /v1/chat/completions`: from a body to a recorded reply.
//!
//! The order is what makes it safe: check everything, let the engine accept, record the arrival, then
//! answer. A request that the engine refuses leaves no record; one that the journal refuses is not
//! served; and what was recorded is always closed, by its end, by a fault, or by the client's leaving.

mod begin;
mod choice;
mod head;
mod logprobs;
mod messages;
mod prompt;
mod request;
mod response;
mod sampling;
mod stream;
mod tools;

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
use crate::ids;

use begin::Asked;
use choice::{Choice, Closing};
use head::Head;
use request::ChatRequest;

/// A reply in progress: everything that its body is made from.
struct Reply {
    head: Head,
    chat: ChatRequest,
    prompt_ids: Vec<u32>,
    choices: Vec<Choice>,
    closing: Arc<Closing>,
    /// Held to the end of the reply, so that a stream counts as a request in progress.
    slot: Slot,
}

/// Replies to a chat request, streaming or not.
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
    let headers = request.headers().clone();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    let chat = ChatRequest::read(
        &body,
        &headers,
        shared.engine.defaults(),
        options.max_choices,
    )?;
    drop(body);
    let asked = Asked {
        shared: shared.clone(),
        chat,
        key: caller.name().map(str::to_owned),
        trace: ids::trace_id(&headers),
        arrived,
        slot,
    };
    let reply = asked.begin().await?;
    if reply.chat.stream {
        Ok(stream::respond(&shared, reply))
    } else {
        response::respond(&shared, reply).await
    }
}
