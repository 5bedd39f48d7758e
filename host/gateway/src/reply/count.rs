//! Which tokens a request would have, and how many: rendered, never generated or recorded.

use std::sync::Arc;

use axum::extract::Request;
use clawhost_journal::now_ms;
use clawhost_policy::Engine;

use super::prompt::Prompt;
use super::{Arriving, Ask};
use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::gateway::Shared;

/// The tokens of the prompt that a request is rendered to now.
pub(crate) fn prompt_ids(engine: &Engine, ask: &mut Ask) -> Result<Vec<u32>, ApiError> {
    Ok(Prompt::render(engine, ask, now_ms())?.ids)
}

/// Counts the prompt of a request that `read` reads; a refusal of the whole prompt names the field `prompt_field`.
pub(crate) async fn count(
    shared: Arc<Shared>,
    caller: Caller,
    request: Request,
    read: fn(&Arriving<'_>) -> Result<Ask, ApiError>,
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
        .ask(move |shared| {
            let mut ask = read(&Arriving {
                shared,
                caller: &caller,
                headers: &headers,
                body: &body,
            })?;
            let (engine, options) = (&shared.engine, &shared.options);
            shared
                .versions
                .resolve(engine, options, ask.model.as_deref(), caller.adapter)?;
            let ids = prompt_ids(engine, &mut ask).map_err(|error| error.param(prompt_field))?;
            Ok(ids.len())
        })
        .await
}
