//! `/v1/adapters`: lists the adapter versions and controls which one is active. Operator only.
//!
//! | | |
//! |---|---|
//! | `GET /v1/adapters` | lists all versions, the active one and the last release changes |
//! | `POST /v1/adapters/promote` `{"version": 3}` | activates a version; 0 is the base model |
//! | `POST /v1/adapters/rollback` | activates the version before the last change |
//! | `POST /v1/adapters/pin` `{"version": 3}` | activates a version (default: the active one) and pins it |
//! | `DELETE /v1/adapters/pin` | removes the pin; the version stays active until a step publishes another |
//!
//! A change applies to every request that arrives after the response; requests in progress finish on their version. While
//! a version is pinned, training steps still publish versions, but these are not activated, and promote and rollback are
//! rejected until the pin is removed. A change that has no effect succeeds. The training crate documents what a change
//! means for training.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use clawhost_journal::{ReleaseChange, ReleaseState};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::{ReleaseError, Shared};
use crate::journal_error;

/// Largest request body in bytes.
const MAX_BODY: usize = 4 << 10;
/// Release changes in a listing.
const RELEASES: u32 = 20;

/// Lists all adapters, oldest first, with the active version and the last release changes.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let to_api_error = |error| journal_error::from_journal(&error);
    let body = shared
        .run_blocking(move |shared| {
            let journal = &shared.journal;
            let state = journal.release_state().map_err(to_api_error)?;
            let mut body = release_state_json(shared, &state, "list");
            if let Some(body) = body.as_object_mut() {
                let adapters = journal.adapters().map_err(to_api_error)?;
                let releases = journal.releases(RELEASES).map_err(to_api_error)?;
                body.insert("data".into(), json!(adapters));
                body.insert("releases".into(), json!(releases));
            }
            Ok(body)
        })
        .await?;
    Ok(Json(body))
}

/// Activates a version.
pub(crate) async fn promote(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let version = parse_version(&shared, &caller, request).await?;
    let version = version.ok_or_else(|| {
        ApiError::bad_request(
            "`version` is missing; name one that `GET /v1/adapters` lists, or 0 for the base model",
        )
        .param("version")
        .code("missing_required_parameter")
    })?;
    change(shared, caller, move |_| Ok(ReleaseChange::Promote(version))).await
}

/// Reverts the last change.
pub(crate) async fn rollback(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    body::discard(request).await;
    caller.require(Scope::Operator)?;
    change(shared, caller, |_| Ok(ReleaseChange::Rollback)).await
}

/// Activates a version and pins it.
pub(crate) async fn pin(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let version = parse_version(&shared, &caller, request).await?;
    change(shared, caller, move |shared| {
        let served = || shared.journal.release_state().map(|state| state.version);
        let version = version.map_or_else(served, Ok);
        version
            .map(ReleaseChange::Pin)
            .map_err(|error| journal_error::from_journal(&error))
    })
    .await
}

/// Removes the pin.
pub(crate) async fn unpin(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    change(shared, caller, |_| Ok(ReleaseChange::Unpin)).await
}

/// Parses the `version` of the body, if present.
async fn parse_version(
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
    let version = Fields::new(&body, "")?.integer("version", 0, i64::MAX)?;
    Ok(version.and_then(|version| u64::try_from(version).ok()))
}

async fn change(
    shared: Arc<Shared>,
    caller: Caller,
    make_change: impl FnOnce(&Shared) -> Result<ReleaseChange, ApiError> + Send + 'static,
) -> Result<Json<Value>, ApiError> {
    let body = shared
        .run_blocking(move |shared| {
            let change = make_change(shared)?;
            let changed = shared.control.change_release(change, caller.name());
            let changed = changed.ok_or_else(|| {
                ApiError::not_found(
                    "no_release_chain",
                    "this server does not support release changes; start it with `clawhost run`",
                )
            })?;
            let state = changed.map_err(|error| release_error(&error))?;
            Ok(release_state_json(shared, &state, "release"))
        })
        .await?;
    Ok(Json(body))
}

fn release_error(error: &ReleaseError) -> ApiError {
    match error {
        ReleaseError::Journal(error) => journal_error::from_journal(error),
        ReleaseError::Unservable(reason) => ApiError::with_status(
            StatusCode::CONFLICT,
            "adapter_not_servable",
            reason.as_str(),
        ),
        ReleaseError::Unavailable(reason) => {
            ApiError::unavailable("adapter_not_served", reason.as_str())
        }
    }
}

fn release_state_json(shared: &Shared, state: &ReleaseState, object: &str) -> Value {
    let active = shared.versions.active(&shared.engine);
    json!({
        "object": object,
        "active": {"version": active.version, "digest": active.digest},
        "pinned": state.pinned,
        "training_from": state.head,
        "rollback_to": state.back,
    })
}
