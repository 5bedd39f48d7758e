//! A whole reply in one JSON body.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::choice::Progress;
use super::{Choice, Dialect, Ended, Reply, Usage};
use crate::error::ApiError;
use crate::gateway::Shared;

/// Waits for all choices and answers with them.
pub(super) async fn respond<D: Dialect>(
    shared: &Arc<Shared>,
    reply: Reply,
    dialect: D,
) -> Result<Response, ApiError> {
    let Reply {
        known,
        choices,
        closing,
        slot,
    } = reply;
    let mut running: FuturesUnordered<_> = choices.into_iter().map(finish).collect();
    let mut usage = Usage::default();
    let mut written = Vec::with_capacity(running.len());
    while let Some(ended) = running.next().await {
        let ended = ended.inspect_err(|_| {
            closing.because("another choice of the same reply failed");
        })?;
        usage.add(&ended.choice);
        written.push(ended);
    }
    written.sort_by_key(|ended| ended.choice.index);
    shared.metrics.prompt_tokens(usage.prompt, usage.cached);
    let body = dialect.whole(&known, written, &usage);
    drop(slot);
    Ok((known.headers(), Json(body)).into_response())
}

async fn finish(mut choice: Choice) -> Result<Ended, ApiError> {
    let mut all = Vec::new();
    loop {
        match choice.next().await? {
            Progress::Deltas(deltas) => all.extend(deltas),
            Progress::Ended(deltas) => {
                all.extend(deltas);
                return Ok(Ended {
                    choice,
                    deltas: all,
                });
            }
        }
    }
}
