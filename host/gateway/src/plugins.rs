//! `GET /v1/plugins`: what is in use, what was refused and what was revoked; `POST /v1/plugins/reload`: the same after
//! a look at the plugins' files now, instead of at the next of the regular looks.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;

/// Answers the plugins as they are.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let mut status = shared.status.status();
    let plugins = status
        .get_mut("plugins")
        .map_or_else(|| json!([]), Value::take);
    Ok(Json(json!({"object": "list", "data": plugins})))
}

/// Answers the plugins as they are afterwards, each with the build that was refused, if any.
pub(crate) async fn reload(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let plugins = shared
        .ask(|shared| {
            shared.status.reload().ok_or_else(|| {
                ApiError::not_found(
                    "no_plugins",
                    "this server has no plugins to reload".to_owned(),
                )
            })
        })
        .await?;
    Ok(Json(json!({"object": "list", "data": plugins})))
}
