//! How many tokens a request would have: rendered and counted, never generated or recorded.

use std::sync::Arc;

use axum::extract::Request;
use clawhost_journal::now_ms;

use super::prompt::Prompt;
use super::{Arriving, Ask};
use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::gateway::Shared;

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
            let ask = read(&Arriving {
                shared,
                caller: &caller,
                headers: &headers,
                body: &body,
            })?;
            let (engine, options) = (&shared.engine, &shared.options);
            shared
                .versions
                .resolve(engine, options, ask.model.as_deref(), caller.adapter)?;
            let prompt = Prompt::render(engine, &ask, now_ms())
                .map_err(|error| error.param(prompt_field))?;
            Ok(prompt.ids.len())
        })
        .await
}
