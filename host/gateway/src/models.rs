//! `/v1/models`: the served model, and each loaded adapter version as `model:version`.
//!
//! A model object has the fields of both OpenAI and Anthropic.

use axum::Json;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::{Client, Shared};

/// A model.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Model {
    id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "model"))]
    kind: &'static str,
    display_name: String,
    lifecycle: &'static str,
    /// The release date of the weights is unknown; Anthropic's API uses the epoch for that.
    created_at: &'static str,
    #[schemars(extend("const" = "model"))]
    object: &'static str,
    /// Unix seconds of the start of the server.
    created: i64,
    owned_by: &'static str,
    /// Tokens of a prompt and its reply.
    max_model_len: usize,
    adapter: AdapterVersion,
}

/// An adapter version.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct AdapterVersion {
    /// 0 is the base model.
    pub(crate) version: u64,
    pub(crate) digest: String,
}

/// All models; the first is the served one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
    data: Vec<Model>,
}

/// Lists the models.
pub(crate) async fn list(Client { shared, caller }: Client) -> Result<Json<ModelList>, ApiError> {
    caller.require(Scope::Chat)?;
    let data = model_objects(&shared);
    Ok(Json(ModelList {
        object: "list",
        first_id: data.first().map(|model| model.id.clone()),
        last_id: data.last().map(|model| model.id.clone()),
        has_more: false,
        data,
    }))
}

/// Retrieves one model.
pub(crate) async fn retrieve(
    Client { shared, caller }: Client,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    caller.require(Scope::Chat)?;
    let Path(id) = path.map_err(|_| model_not_found(""))?;
    model_objects(&shared)
        .into_iter()
        .find(|model| model.id == id)
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

fn model_objects(shared: &Shared) -> Vec<Model> {
    let name = &shared.options.model_name;
    let active = shared.versions.active(&shared.engine);
    let model = |id: String, version: u64, digest: &str| Model {
        display_name: id.clone(),
        id,
        kind: "model",
        lifecycle: "active",
        created_at: "1970-01-01T00:00:00Z",
        object: "model",
        created: shared.started_ms / 1000,
        owned_by: "clawhost",
        max_model_len: shared.engine.context(),
        adapter: AdapterVersion {
            version,
            digest: digest.to_owned(),
        },
    };
    let mut models = vec![model(name.clone(), active.version, active.digest())];
    models.extend(shared.versions.all(&shared.engine).iter().map(|served| {
        model(
            format!("{name}:{}", served.version),
            served.version,
            served.digest(),
        )
    }));
    models
}
