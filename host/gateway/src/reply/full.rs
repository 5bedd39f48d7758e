//! Non-streaming responses: the reply in one JSON body.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::choice::Progress;
use super::context::Reply;
use super::{Choice, Dialect, FinishedChoice, Usage};
use crate::error::ApiError;

/// Waits for all choices and returns them in one body.
pub(super) async fn respond<D: Dialect>(reply: Reply, dialect: D) -> Result<Response, ApiError> {
    let Reply {
        context,
        choices,
        abort_reason,
        slot,
    } = reply;
    let mut running: FuturesUnordered<_> = choices.into_iter().map(drive).collect();
    let mut usage = Usage::default();
    let mut choices = Vec::with_capacity(running.len());
    while let Some(finished) = running.next().await {
        let finished = finished.inspect_err(|_| {
            abort_reason.set("another choice of the same reply failed");
        })?;
        usage.add(&finished.choice);
        choices.push(finished);
    }
    choices.sort_by_key(|finished| finished.choice.index);
    let body = dialect.response_body(&context, choices, &usage);
    drop(slot);
    Ok((context.headers(), Json(body)).into_response())
}

/// Polls a choice until it is complete.
async fn drive(mut choice: Choice) -> Result<FinishedChoice, ApiError> {
    let mut all = Vec::new();
    loop {
        match choice.next().await? {
            Progress::Deltas(deltas) => all.extend(deltas),
            Progress::Finished(deltas) => {
                all.extend(deltas);
                return Ok(FinishedChoice {
                    choice,
                    deltas: all,
                });
            }
        }
    }
}
