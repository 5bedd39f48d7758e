//! `/v1/steps/{id}`: the samples of a training step, what each contributed, and which were dropped. Operator only: a step
//! has samples of all keys.

use axum::Json;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use clawhost_journal::StepId;
use serde_json::Value;

use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Client;

/// Explains one step.
pub(crate) async fn explain(
    Client { shared, caller }: Client,
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
