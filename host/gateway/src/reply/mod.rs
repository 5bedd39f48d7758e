//! From a request in any dialect to a recorded reply: the one path that all of them take.
//!
//! The order is what makes it safe: check everything, let the engine accept, record the arrival, then
//! answer. A request that the engine refuses leaves no record; one that the journal refuses is not
//! served; and what was recorded is always closed, by its end, by a fault, or by the client's leaving.
//!
//! A [`Dialect`] reads a body into an [`Ask`] and writes the answer; it knows nothing of engine and journal.
//!
//! | module | idea |
//! |---|---|
//! | `dialect` | what tells the dialects apart |
//! | `ask`, `drawing`, `format`, `tools`, `session`, `variables` | a request, checked and free of any dialect |
//! | `unsupported` | fields that would change the reply and are refused |
//! | `begin`, `prompt`, `truncation`, `constraint` | rendered, shortened, held to its form, taken on by the engine, recorded |
//! | `choice` | one choice from its first token to its record |
//! | `known` | what an answer is made from |
//! | `count` | how many tokens a request would have, and nothing else |
//! | `stream`, `whole` | driving the choices: as events, or to the end |

mod ask;
mod begin;
mod choice;
mod constraint;
mod count;
mod dialect;
mod drawing;
mod format;
mod known;
mod prompt;
mod session;
mod stream;
mod tools;
mod truncation;
mod unsupported;
mod variables;
mod whole;

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;

use crate::admission::Slot;
use crate::auth::{Caller, Scope};
use crate::body;
use crate::connection::Peer;
use crate::error::ApiError;
use crate::gateway::Shared;

use begin::Asked;
use choice::Closing;

pub(crate) use ask::{Ask, PromptEnd};
pub(crate) use begin::{refusal, stopping};
pub(crate) use choice::{Choice, Delta};
pub(crate) use count::{count, prompt_ids};
pub(crate) use dialect::{Arriving, Dialect, Ended, Events, Outbox};
pub(crate) use drawing::temperature_and_top_p;
pub(crate) use format::{Format, enforceable};
pub(crate) use known::{Known, Usage};
pub(crate) use session::Session;
pub(crate) use tools::{Tool, ToolChoice, ToolList, Tools, refuse_deferred};
pub(crate) use truncation::{Cut, Truncation};
pub(crate) use unsupported::{Surface, refuse_unsupported};
pub(crate) use variables::variables;

/// A reply in progress: everything that its answer is made from.
struct Reply {
    known: Known,
    choices: Vec<Choice>,
    closing: Arc<Closing>,
    /// Held until the reply is generated, so that a stream counts as a request in progress.
    slot: Slot,
}

/// Answers a request of the dialect `D`, streaming or not.
pub(crate) async fn answer<D: Dialect>(
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
    let peer = request.extensions().get::<Peer>().cloned();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    let asked = Asked {
        shared: shared.clone(),
        body,
        headers,
        caller,
        arrived,
        slot,
        peer: peer.unwrap_or_default(),
    };
    let (reply, dialect) = asked.begin::<D>().await?;
    if dialect.streams() {
        Ok(stream::respond(&shared, reply, dialect))
    } else {
        whole::respond(&shared, reply, dialect).await
    }
}
