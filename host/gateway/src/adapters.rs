//! `/v1/adapters`: the adapters that the journal knows, and which one is served now.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::recorded;

/// All adapters, oldest first.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let active = shared.versions.active(&shared.engine);
    let adapters = shared
        .journal
        .adapters()
        .map_err(|error| recorded::refusal(&error))?;
    Ok(Json(json!({
        "object": "list",
        "active": {"version": active.version, "digest": active.digest},
        "data": adapters,
    })))
}
