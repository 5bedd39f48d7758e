//! `/v1/models`: the served model, and each loaded adapter version as `model:version`.
//!
//! A model object has the fields of both OpenAI and Anthropic.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;

/// Lists the models.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Chat)?;
    let models = model_objects(&shared);
    let id = |model: Option<&Value>| model.and_then(|model| model.get("id")).cloned();
    Ok(Json(json!({
        "object": "list",
        "first_id": id(models.first()),
        "last_id": id(models.last()),
        "has_more": false,
        "data": models,
    })))
}

/// Retrieves one model.
pub(crate) async fn retrieve(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Chat)?;
    let Path(id) = path.map_err(|_| model_not_found(""))?;
    model_objects(&shared)
        .into_iter()
        .find(|model| model.get("id").and_then(Value::as_str) == Some(id.as_str()))
        .map(Json)
        .ok_or_else(|| model_not_found(&id))
}

fn model_not_found(id: &str) -> ApiError {
    let shown: String = id.chars().take(120).collect();
    ApiError::not_found(
        "model_not_found",
        format!("the model `{shown}` does not exist; `/v1/models` lists the served models"),
    )
}

fn model_objects(shared: &Shared) -> Vec<Value> {
    let name = &shared.options.model_name;
    let active = shared.versions.active(&shared.engine);
    let model = |id: String, version: u64, digest: &str| {
        json!({
            "id": id,
            "type": "model",
            "display_name": id,
            "lifecycle": "active",
            // The release date of the weights is unknown; Anthropic's API uses the epoch for that.
            "created_at": "1970-01-01T00:00:00Z",
            "object": "model",
            "created": shared.started_ms / 1000,
            "owned_by": "clawhost",
            "max_model_len": shared.engine.context(),
            "adapter": {"version": version, "digest": digest},
        })
    };
    let mut models = vec![model(name.clone(), active.version, &active.digest)];
    models.extend(shared.versions.all(&shared.engine).iter().map(|served| {
        model(
            format!("{name}:{}", served.version),
            served.version,
            &served.digest,
        )
    }));
    models
}
