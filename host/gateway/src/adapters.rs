//! `/v1/adapters`: the adapters that the journal knows, which one is served, and the release chain, for the operator.
//!
//! | | |
//! |---|---|
//! | `GET /v1/adapters` | all versions, what is served, and the last changes of that |
//! | `POST /v1/adapters/promote` `{"version": 3}` | serve this version; 0 is the base model |
//! | `POST /v1/adapters/rollback` | serve what was served before the last change, whoever made it |
//! | `POST /v1/adapters/pin` `{"version": 3}` | serve this version (default: the one that is served) and hold it |
//! | `DELETE /v1/adapters/pin` | let go of it; it stays served until a step publishes another |
//!
//! A change holds for every request that comes after the answer; requests under way end on the version that they began
//! with. While a version is pinned, steps are made and kept but not served, and promotion and rollback are refused, so
//! that nobody lets go of a version without saying so. What changes nothing is answered like what does. What a change means
//! for training is written in the head of its `releases` module.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use clawhost_journal::{Change, Standing};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::{NotChanged, Shared};
use crate::recorded;

/// Bytes of a body that names a version.
const MAX_BODY: usize = 4 << 10;
/// Changes that are listed.
const RELEASES: u32 = 20;

/// All adapters, oldest first; what is served, and how it came to be.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let refusal = |error| recorded::refusal(&error);
    let body = shared
        .ask(move |shared| {
            let journal = &shared.journal;
            let standing = journal.standing().map_err(refusal)?;
            let mut body = told(shared, &standing, "list");
            if let Some(body) = body.as_object_mut() {
                let adapters = journal.adapters().map_err(refusal)?;
                let releases = journal.releases(RELEASES).map_err(refusal)?;
                body.insert("data".into(), json!(adapters));
                body.insert("releases".into(), json!(releases));
            }
            Ok(body)
        })
        .await?;
    Ok(Json(body))
}

/// Serves a version.
pub(crate) async fn promote(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let version = version(&shared, &caller, request).await?;
    let version = version.ok_or_else(|| {
        ApiError::bad_request(
            "`version` is missing; name one that `GET /v1/adapters` lists, or 0 for the base model",
        )
        .param("version")
        .code("missing_required_parameter")
    })?;
    change(shared, caller, move |_| Ok(Change::Promote(version))).await
}

/// Takes the last change back.
pub(crate) async fn rollback(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    body::discard(request).await;
    caller.require(Scope::Operator)?;
    change(shared, caller, |_| Ok(Change::Rollback)).await
}

/// Serves a version and holds it.
pub(crate) async fn pin(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let version = version(&shared, &caller, request).await?;
    change(shared, caller, move |shared| {
        let served = || shared.journal.standing().map(|standing| standing.version);
        let version = version.map_or_else(served, Ok);
        version
            .map(Change::Pin)
            .map_err(|error| recorded::refusal(&error))
    })
    .await
}

/// Lets go of what is held.
pub(crate) async fn unpin(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    change(shared, caller, |_| Ok(Change::Unpin)).await
}

/// The version that a body names, if it names one.
async fn version(
    shared: &Shared,
    caller: &Caller,
    request: Request,
) -> Result<Option<u64>, ApiError> {
    if let Err(error) = caller.require(Scope::Operator) {
        body::discard(request).await;
        return Err(error);
    }
    let max = MAX_BODY.min(shared.options.max_body);
    let body = body::read_json(request, max, shared.options.read_timeout).await?;
    let version = Fields::of(&body, "")?.integer("version", 0, i64::MAX)?;
    Ok(version.and_then(|version| u64::try_from(version).ok()))
}

async fn change(
    shared: Arc<Shared>,
    caller: Caller,
    wanted: impl FnOnce(&Shared) -> Result<Change, ApiError> + Send + 'static,
) -> Result<Json<Value>, ApiError> {
    let body = shared
        .ask(move |shared| {
            let wanted = wanted(shared)?;
            let changed = shared.status.release(wanted, caller.name());
            let changed = changed.ok_or_else(|| {
                ApiError::not_found(
                    "no_release_chain",
                    "nobody can change what this server serves; start it with `clawhost run`",
                )
            })?;
            let standing = changed.map_err(|error| refusal(&error))?;
            Ok(told(shared, &standing, "release"))
        })
        .await?;
    Ok(Json(body))
}

fn refusal(error: &NotChanged) -> ApiError {
    match error {
        NotChanged::Journal(error) => recorded::refusal(error),
        NotChanged::Unservable(reason) => ApiError::with_status(
            StatusCode::CONFLICT,
            "adapter_not_servable",
            reason.as_str(),
        ),
        NotChanged::Unavailable(reason) => {
            ApiError::unavailable("adapter_not_served", reason.as_str())
        }
    }
}

fn told(shared: &Shared, standing: &Standing, object: &str) -> Value {
    let active = shared.versions.active(&shared.engine);
    json!({
        "object": object,
        "active": {"version": active.version, "digest": active.digest},
        "pinned": standing.pinned,
        "training_from": standing.head,
        "rollback_to": standing.back,
    })
}
