//! `/v1/steps/{id}`: the samples of a training step, what each contributed, and which were dropped. Operator only: a step
//! has samples of all keys.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use clawhost_journal::StepId;
use serde_json::Value;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Shared;

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
    let explanation = shared.query(move |journal| clawhost_inspect::explain_step(journal, id));
    let explanation = explanation.await?;
    explanation
        .map(Json)
        .ok_or_else(|| ApiError::not_found("unknown_step", format!("there is no step {id}")))
}
