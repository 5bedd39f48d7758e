//! `GET /v1/plugins`: active, rejected and revoked plugins. `POST /v1/plugins/reload`: reloads changed plugin files now,
//! instead of at the next periodic check, and returns the same list.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;

/// Lists the plugins.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let mut status = shared.control.status();
    let plugins = status
        .get_mut("plugins")
        .map_or_else(|| json!([]), Value::take);
    Ok(Json(json!({"object": "list", "data": plugins})))
}

/// Reloads changed plugins and lists all of them, each with its rejected build, if any.
pub(crate) async fn reload(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let plugins = shared
        .run_blocking(|shared| {
            shared.control.reload_plugins().ok_or_else(|| {
                ApiError::not_found(
                    "no_plugins",
                    "this server has no plugins to reload".to_owned(),
                )
            })
        })
        .await?;
    Ok(Json(json!({"object": "list", "data": plugins})))
}
