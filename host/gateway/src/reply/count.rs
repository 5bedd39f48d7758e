//! Renders and counts the prompt of a request without generating or recording anything.

use std::sync::Arc;

use axum::extract::Request;
use clawhost_engine::Engine;
use clawhost_journal::now_ms;

use super::prompt::Prompt;
use super::{InferenceRequest, RawRequest};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Shared;

/// The prompt tokens of a request, rendered with the current time and without experience.
pub(crate) fn prompt_ids(
    engine: &Engine,
    request: &mut InferenceRequest,
) -> Result<Vec<u32>, ApiError> {
    Ok(Prompt::render(engine, request, &mut None, now_ms())?.ids)
}

/// Reads the body of a request of the scope `chat`, and runs `work` with it off the async threads.
pub(crate) async fn run_with_body<T: Send + 'static>(
    shared: &Arc<Shared>,
    caller: Caller,
    request: Request,
    work: impl FnOnce(&RawRequest<'_>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let headers = request.headers().clone();
    let body = shared.read_json(&caller, Scope::Chat, request, usize::MAX);
    let body = body.await?;
    let work = move |shared: &Shared| {
        work(&RawRequest {
            shared,
            caller: &caller,
            headers: &headers,
            body: &body,
        })
    };
    shared.run_blocking(work).await
}

/// Counts the prompt tokens of a request that `parse` parses. Errors about the whole prompt name `prompt_field`.
pub(crate) async fn count_prompt_tokens(
    shared: Arc<Shared>,
    caller: Caller,
    request: Request,
    parse: fn(&RawRequest<'_>) -> Result<InferenceRequest, ApiError>,
    prompt_field: &'static str,
) -> Result<usize, ApiError> {
    let count = move |raw: &RawRequest<'_>| {
        let mut request = parse(raw)?;
        raw.resolve_model(request.model.as_deref())?;
        let ids = prompt_ids(&raw.shared.engine, &mut request);
        Ok(ids.map_err(|error| error.param(prompt_field))?.len())
    };
    run_with_body(&shared, caller, request, count).await
}
