//! Renders and counts the prompt of a request without generating or recording anything.

use std::sync::Arc;

use axum::extract::Request;
use clawhost_journal::now_ms;
use clawhost_policy::Engine;

use super::prompt::Prompt;
use super::{InferenceRequest, RawRequest};
use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::gateway::Shared;

/// The prompt tokens of a request, rendered with the current time.
pub(crate) fn prompt_ids(
    engine: &Engine,
    request: &mut InferenceRequest,
) -> Result<Vec<u32>, ApiError> {
    Ok(Prompt::render(engine, request, now_ms())?.ids)
}

/// Counts the prompt tokens of a request that `parse` parses. Errors about the whole prompt name `prompt_field`.
pub(crate) async fn count_prompt_tokens(
    shared: Arc<Shared>,
    caller: Caller,
    request: Request,
    parse: fn(&RawRequest<'_>) -> Result<InferenceRequest, ApiError>,
    prompt_field: &'static str,
) -> Result<usize, ApiError> {
    if let Err(error) = caller.require(Scope::Chat) {
        body::discard(request).await;
        return Err(error);
    }
    let headers = request.headers().clone();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    shared
        .run_blocking(move |shared| {
            let mut request = parse(&RawRequest {
                shared,
                caller: &caller,
                headers: &headers,
                body: &body,
            })?;
            let (engine, options) = (&shared.engine, &shared.options);
            shared
                .versions
                .resolve(engine, options, request.model.as_deref(), caller.adapter)?;
            let ids =
                prompt_ids(engine, &mut request).map_err(|error| error.param(prompt_field))?;
            Ok(ids.len())
        })
        .await
}
