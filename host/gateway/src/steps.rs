//! `/v1/steps/{id}`: the samples of a training step, what each contributed, and which were dropped. Operator only: a step
//! has samples of all keys.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use clawhost_journal::StepId;
use serde_json::Value;

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::journal_error::from_sessions;

/// Explains one step.
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let id: Option<StepId> = path.ok().and_then(|Path(id)| id.parse().ok());
    let id =
        id.ok_or_else(|| ApiError::invalid("id", "the step id must be a number, such as 12"))?;
    let explanation = shared
        .run_blocking(move |shared| {
            shared
                .sessions
                .explain_step(id)
                .map_err(|error| from_sessions(&error))
        })
        .await?;
    explanation
        .map(Json)
        .ok_or_else(|| ApiError::not_found("unknown_step", format!("there is no step {id}")))
}
