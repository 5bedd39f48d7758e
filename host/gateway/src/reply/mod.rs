//! The pipeline from a request in any dialect to a recorded reply.
//!
//! The order is: validate, submit to the engine, record the request, generate and respond. A request that the engine
//! rejects leaves no record; a request that cannot be recorded is not served. Every recorded turn is closed: when the
//! reply completes, when generation fails, or when the client disconnects.
//!
//! A [`Dialect`] parses a body into an [`InferenceRequest`] and writes the response; it knows neither engine nor journal.
//!
//! | module | contents |
//! |---|---|
//! | `dialect` | the trait that each API dialect implements |
//! | `request`, `format`, `tools`, `session`, `variables` | the validated request, independent of the dialect |
//! | `unsupported` | fields that would change the reply and are rejected |
//! | `start`, `experience`, `prompt`, `truncation`, `constraint` | add experience, render, truncate, constrain, submit to the engine, record |
//! | `choice`, `delta`, `abort_reason` | one choice from its first token to its record |
//! | `context` | a reply in progress: its ids, headers and token counts |
//! | `count` | counts prompt tokens without generating |
//! | `stream`, `full` | streaming and non-streaming responses |

mod abort_reason;
mod choice;
mod constraint;
mod context;
mod count;
mod delta;
mod dialect;
mod experience;
mod format;
mod full;
mod prompt;
mod request;
mod session;
mod start;
mod stream;
mod tools;
mod truncation;
mod unsupported;
mod variables;

use std::time::Instant;

use axum::Extension;
use axum::extract::Request;
use axum::response::Response;

use crate::admission::Slot;
use crate::connection::Peer;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Client;

use start::RequestContext;

pub(crate) use choice::Choice;
pub(crate) use context::{CompletionUsage, ReplyContext, Usage};
pub(crate) use count::{count_prompt_tokens, prompt_ids, run_with_body};
pub(crate) use delta::Delta;
pub(crate) use dialect::{Dialect, EventQueue, FinishedChoice, RawRequest, StreamWriter};
pub(crate) use format::{FormatFields, TextFormat, check_enforceable};
pub(crate) use request::{InferenceRequest, PromptEnd};
pub(crate) use session::{SessionBody, SessionFields};
pub(crate) use start::{engine_error, shutting_down};
pub(crate) use stream::sse_response;
pub(crate) use tools::{
    AllowedMode, AllowedTool, AllowedTools, FunctionFields, ModeOr, NamedFunction, ToolChoice,
    ToolList, Tools, reject_deferred,
};
pub(crate) use truncation::{TokenTruncation, Truncation, TruncationFields};
pub(crate) use unsupported::{Endpoint, reject_unsupported};
pub(crate) use variables::{TemplateFields, parse_template_variables};

/// Handles a request of the dialect `D`, streaming or not.
pub(crate) async fn create_reply<D: Dialect>(
    Client { shared, caller }: Client,
    Extension(slot): Extension<Slot>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let headers = request.headers().clone();
    let peer = request.extensions().get::<Peer>().cloned();
    let body = shared
        .read_json(&caller, Scope::Chat, request, usize::MAX)
        .await?;
    let request_context = RequestContext {
        shared: shared.clone(),
        body,
        headers,
        caller,
        arrived,
        slot,
        peer: peer.unwrap_or_default(),
    };
    let (reply, dialect) = request_context.start::<D>().await?;
    if dialect.is_streaming() {
        Ok(stream::respond(&shared, reply, dialect))
    } else {
        full::respond(reply, dialect).await
    }
}
