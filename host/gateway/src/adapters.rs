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
//! With an adapter for each key or user (`training.adapters`), `?owner=` names the one whose versions it is about, such as
//! `?owner=key:alice`; `?owner=shared` is the shared adapter. Without it, `GET` lists the versions of all owners, and a
//! change is rejected.
//!
//! A change applies to every request that arrives after the response; requests in progress finish on their version. While
//! a version is pinned, training steps still publish versions, but these are not activated, and promote and rollback are
//! rejected until the pin is removed. A change that has no effect succeeds. The training crate documents what a change
//! means for training.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request};
use clawhost_config::AdapterScope;
use clawhost_journal::{AdapterOwner, AdapterRow, ReleaseChange, ReleaseRow, ReleaseState};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::auth::Caller;
use crate::body;
use crate::control::ReleaseError;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::models::AdapterVersion;
use crate::parse::{Int, parse};
use crate::shared::{Client, Shared};

/// Largest request body in bytes.
const MAX_BODY: usize = 4 << 10;
/// Release changes in a listing.
const RELEASES: u32 = 20;

/// An adapter version.
type Version = Int<0, { i64::MAX }>;

/// The version to promote.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromoteFields {
    /// One that `GET /v1/adapters` lists, or 0 for the base model.
    version: Version,
}

/// The version to pin.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PinFields {
    /// Default: the active version.
    version: Option<Version>,
}

/// Parameters in the URL.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct OwnerQuery {
    owner: Option<String>,
}

pub(crate) type OwnerQueryResult = Result<Query<OwnerQuery>, QueryRejection>;

/// The active version and what a change may do.
#[derive(Debug, Serialize, JsonSchema)]
struct ReleaseFields {
    active: AdapterVersion,
    /// Whether training does not activate another version.
    pinned: bool,
    /// The version that training continues from.
    training_from: u64,
    /// The version that a rollback activates.
    rollback_to: Option<u64>,
}

/// The state after a release change.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Release {
    #[schemars(extend("const" = "release"))]
    object: &'static str,
    #[serde(flatten)]
    state: ReleaseFields,
}

/// All adapters, oldest first, with the active version and the last release changes, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AdapterList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    #[serde(flatten)]
    state: ReleaseFields,
    #[schemars(with = "Vec<AdapterSchema>")]
    data: Vec<AdapterRow>,
    #[schemars(with = "Vec<ReleaseSchema>")]
    releases: Vec<ReleaseRow>,
}

/// An adapter of the journal; it has further fields.
#[derive(JsonSchema)]
#[schemars(rename = "Adapter")]
#[expect(dead_code, reason = "only its schema is used")]
struct AdapterSchema {
    #[schemars(range(min = 1))]
    version: u64,
    digest: String,
    state: AdapterState,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum AdapterState {
    Active,
    Retired,
    Candidate,
}

/// A release change of the journal; it has further fields.
#[derive(JsonSchema)]
#[schemars(rename = "ReleaseChange")]
#[expect(dead_code, reason = "only its schema is used")]
struct ReleaseSchema {
    id: i64,
    /// Unix milliseconds.
    ms: i64,
    version: u64,
    act: ReleaseAct,
    /// Name of the key.
    by: Option<String>,
    pinned: bool,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum ReleaseAct {
    Step,
    Promote,
    Rollback,
    Pin,
    Unpin,
}

/// Lists all adapters, oldest first, with the active version and the last release changes.
pub(crate) async fn list(
    Client { shared, caller }: Client,
    query: OwnerQueryResult,
) -> Result<Json<AdapterList>, ApiError> {
    caller.require(Scope::Operator)?;
    let named = named_owner(query)?;
    let body = shared
        .run_blocking(move |shared| {
            let journal = &shared.journal;
            let (mut data, mut releases) = (journal.adapters()?, journal.releases(RELEASES)?);
            if let Some(named) = &named {
                data.retain(|row| row.owner == *named);
                releases.retain(|row| row.owner == *named);
            }
            let owner = named.flatten();
            let state = journal.release_state_of(owner.as_ref())?;
            Ok(AdapterList {
                object: "list",
                state: release_fields(shared, owner.as_ref(), &state)?,
                data,
                releases,
            })
        })
        .await?;
    Ok(Json(body))
}

/// Activates a version.
pub(crate) async fn promote(
    Client { shared, caller }: Client,
    query: OwnerQueryResult,
    request: Request,
) -> Result<Json<Release>, ApiError> {
    let fields: PromoteFields = read(&shared, &caller, request).await?;
    let version = fields.version.get().cast_unsigned();
    let promote = move |_: &_, _: Option<&_>| Ok(ReleaseChange::Promote(version));
    change(shared, caller, query, promote).await
}

/// Reverts the last change.
pub(crate) async fn rollback(
    Client { shared, caller }: Client,
    query: OwnerQueryResult,
    request: Request,
) -> Result<Json<Release>, ApiError> {
    body::discard(request).await;
    caller.require(Scope::Operator)?;
    change(shared, caller, query, |_, _| Ok(ReleaseChange::Rollback)).await
}

/// Activates a version and pins it.
pub(crate) async fn pin(
    Client { shared, caller }: Client,
    query: OwnerQueryResult,
    request: Request,
) -> Result<Json<Release>, ApiError> {
    let fields: PinFields = read(&shared, &caller, request).await?;
    let version = fields.version.map(|version| version.get().cast_unsigned());
    change(shared, caller, query, move |shared, owner| {
        let state = || shared.journal.release_state_of(owner);
        let served = || state().map(|state| state.version);
        let version = version.map_or_else(served, Ok);
        Ok(ReleaseChange::Pin(version?))
    })
    .await
}

/// Removes the pin.
pub(crate) async fn unpin(
    Client { shared, caller }: Client,
    query: OwnerQueryResult,
) -> Result<Json<Release>, ApiError> {
    caller.require(Scope::Operator)?;
    change(shared, caller, query, |_, _| Ok(ReleaseChange::Unpin)).await
}

/// Reads and parses the body.
async fn read<T: DeserializeOwned>(
    shared: &Shared,
    caller: &Caller,
    request: Request,
) -> Result<T, ApiError> {
    let body = shared.read_json(caller, Scope::Operator, request, MAX_BODY);
    parse(&body.await?)
}

async fn change(
    shared: Arc<Shared>,
    caller: Caller,
    query: OwnerQueryResult,
    make_change: impl FnOnce(&Shared, Option<&AdapterOwner>) -> Result<ReleaseChange, ApiError>
    + Send
    + 'static,
) -> Result<Json<Release>, ApiError> {
    let owner = match (named_owner(query)?, shared.options.adapters) {
        (Some(owner), _) => owner,
        (None, AdapterScope::Shared) => None,
        (None, AdapterScope::Key | AdapterScope::User) => {
            let message = "this server has an adapter for each owner (training.adapters); name the one to change, such as \
                 `?owner=key:alice`, or `?owner=shared` for the shared adapter";
            return Err(ApiError::bad_request(message)
                .param("owner")
                .code("owner_required"));
        }
    };
    let body = shared
        .run_blocking(move |shared| {
            let owner = owner.as_ref();
            let change = make_change(shared, owner)?;
            let control = &shared.control;
            let changed = control.change_release(owner, change, caller.name());
            let changed = changed.ok_or_else(|| {
                ApiError::not_found(
                    "no_release_chain",
                    "this server does not support release changes; start it with `clawhost run`",
                )
            })?;
            let state = changed?;
            Ok(Release {
                object: "release",
                state: release_fields(shared, owner, &state)?,
            })
        })
        .await?;
    Ok(Json(body))
}

/// The owner that the URL names, if it names one; `Some(None)` is the shared adapter.
pub(crate) fn named_owner(
    query: OwnerQueryResult,
) -> Result<Option<Option<AdapterOwner>>, ApiError> {
    let Query(query) =
        query.map_err(|error| ApiError::bad_request(error.body_text()).code("invalid_query"))?;
    match query.owner.as_deref() {
        None => Ok(None),
        Some("shared") => Ok(Some(None)),
        Some(text) => {
            let owner = text.parse::<AdapterOwner>();
            let owner = owner.map_err(|error| ApiError::invalid("owner", error.to_string()))?;
            Ok(Some(Some(owner)))
        }
    }
}

impl From<ReleaseError> for ApiError {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Journal(error) => error.into(),
            ReleaseError::Unservable(reason) => Self::conflict("adapter_not_servable", reason),
            ReleaseError::Unavailable(reason) => Self::unavailable("adapter_not_served", reason),
        }
    }
}

fn release_fields(
    shared: &Shared,
    owner: Option<&AdapterOwner>,
    state: &ReleaseState,
) -> Result<ReleaseFields, ApiError> {
    let own = owner.and_then(|owner| shared.control.version_of(owner));
    let own = own.transpose()?;
    let active = own.unwrap_or_else(|| shared.versions.active(&shared.engine));
    Ok(ReleaseFields {
        active: AdapterVersion {
            version: active.version,
            digest: active.digest().to_owned(),
        },
        pinned: state.pinned,
        training_from: state.head,
        rollback_to: state.back,
    })
}
