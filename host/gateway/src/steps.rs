//! `/v1/steps/{id}`: which samples a training step was made of, what each moved, and what was dropped. For the operator:
//! a step has samples of everybody.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use clawhost_journal::StepId;
use serde_json::Value;

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::recorded::session_refusal;

/// One step.
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    named: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let id: Option<StepId> = named.ok().and_then(|Path(name)| name.parse().ok());
    let id =
        id.ok_or_else(|| ApiError::invalid("id", "a step is named by its number, such as 12"))?;
    let explained = shared
        .ask(move |shared| {
            shared
                .sessions
                .explain_step(id)
                .map_err(|error| session_refusal(&error))
        })
        .await?;
    explained
        .map(Json)
        .ok_or_else(|| ApiError::not_found("unknown_step", format!("there is no step {id}")))
}
