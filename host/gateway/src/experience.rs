//! `/v1/experience`: what is kept of a key's corrections, to be shown, edited and deleted.
//!
//! A chat key has access to its own entries, an operator to all; entries of other keys are reported as not found.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request};
use clawhost_config::ExperienceMode;
use clawhost_journal::{ExperienceEdit, ExperienceEntry, MAX_EXPERIENCE_BYTES};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::parse::parse;
use crate::sessions::{PathResult, path_id};
use crate::shared::{Client, Shared};

/// Largest request body in bytes.
const MAX_BODY: usize = 16 << 10;

/// `?key=`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ExperienceQuery {
    key: Option<String>,
}

/// A change of an entry: of `text`, of `state`, or of both.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ExperienceFields {
    /// New text. The entry becomes active unless `state` says otherwise.
    #[schemars(length(min = 1, max = MAX_EXPERIENCE_BYTES))]
    text: Option<String>,
    /// Whether the entry is part of prompts.
    state: Option<StateName>,
}

/// State of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum StateName {
    Active,
    Retired,
}

/// The entries, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExperienceList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    /// How experience is used (`experience.mode`).
    #[schemars(with = "String")]
    mode: ExperienceMode,
    #[schemars(with = "Vec<EntrySchema>")]
    data: Vec<ExperienceEntry>,
}

/// An entry.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Entry {
    #[schemars(extend("const" = "experience"))]
    object: &'static str,
    #[serde(flatten)]
    #[schemars(with = "EntrySchema")]
    entry: ExperienceEntry,
}

/// A deleted entry.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Deleted {
    id: i64,
    #[schemars(extend("const" = "experience.deleted"))]
    object: &'static str,
    #[schemars(extend("const" = true))]
    deleted: bool,
}

#[derive(JsonSchema)]
#[schemars(rename = "ExperienceEntry")]
#[expect(dead_code, reason = "only its schema is used")]
struct EntrySchema {
    #[schemars(range(min = 1))]
    id: i64,
    /// Name of the key.
    key: Option<String>,
    text: String,
    /// Whether the text was edited.
    edited: bool,
    state: StateName,
    /// Why it is retired.
    reason: Option<String>,
    /// The turns whose hints said it, oldest first.
    turns: Vec<i64>,
    /// Unix milliseconds.
    created_ms: i64,
    /// Unix milliseconds of the last turn whose hint said it.
    last_ms: i64,
    /// How often it was distilled since then.
    distilled: u32,
    /// Mean divergence of the policy without it from the teacher with it these times, in nats per token.
    gap: Option<f64>,
}

/// Lists the entries of the caller's key; for an operator, those of all keys or of the one in `?key=`.
pub(crate) async fn list(
    Client { shared, caller }: Client,
    query: Result<Query<ExperienceQuery>, QueryRejection>,
) -> Result<Json<ExperienceList>, ApiError> {
    let Query(query) =
        query.map_err(|error| ApiError::bad_request(error.body_text()).code("invalid_query"))?;
    require_chat(&caller)?;
    let mode = shared.options.experience.mode;
    let data = shared.run_blocking(move |shared| {
        Ok(match query.key.as_deref() {
            Some(key) if caller.can_access(Some(key)) => shared.journal.experience(Some(key))?,
            Some(_) => Vec::new(),
            None if caller.has_scope(Scope::Operator) => shared.journal.all_experience()?,
            None => shared.journal.experience(caller.name())?,
        })
    });
    Ok(Json(ExperienceList {
        object: "list",
        mode,
        data: data.await?,
    }))
}

/// Changes the text or the state of an entry.
pub(crate) async fn edit(
    Client { shared, caller }: Client,
    path: PathResult,
    request: Request,
) -> Result<Json<Entry>, ApiError> {
    let id = entry_id(path)?;
    let scope = match caller.has_scope(Scope::Operator) {
        true => Scope::Operator,
        false => Scope::Chat,
    };
    let body = shared.read_json(&caller, scope, request, MAX_BODY).await?;
    let fields: ExperienceFields = parse(&body)?;
    if fields.text.is_none() && fields.state.is_none() {
        return Err(ApiError::invalid(
            "text",
            "a change of an entry needs a `text`, a `state`, or both",
        ));
    }
    if fields
        .text
        .as_deref()
        .is_some_and(|text| text.trim().is_empty())
    {
        return Err(ApiError::invalid(
            "text",
            "the text of an entry is blank; delete the entry instead",
        ));
    }
    if fields
        .text
        .as_deref()
        .is_some_and(|text| text.len() > MAX_EXPERIENCE_BYTES)
    {
        return Err(ApiError::invalid(
            "text",
            format!("the text of an entry is longer than {MAX_EXPERIENCE_BYTES} bytes"),
        ));
    }
    let edited = shared.run_blocking(move |shared| {
        require_access(shared, &caller, id)?;
        let edit = ExperienceEdit {
            text: fields.text,
            active: fields.state.map(|state| state == StateName::Active),
        };
        let edited = shared.journal.edit_experience(id, &edit)?;
        tracing::info!(entry = id, key = caller.name(), "experience edited");
        edited.ok_or_else(|| unknown_entry(id))
    });
    Ok(Json(Entry {
        object: "experience",
        entry: edited.await?,
    }))
}

/// Deletes an entry. The hints that it came from stay in the record of their turns.
pub(crate) async fn delete(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<Deleted>, ApiError> {
    require_chat(&caller)?;
    let id = entry_id(path)?;
    let deleted = shared.run_blocking(move |shared| {
        require_access(shared, &caller, id)?;
        if !shared.journal.forget_experience(id)? {
            return Err(unknown_entry(id));
        }
        tracing::info!(entry = id, key = caller.name(), "experience deleted");
        Ok(())
    });
    deleted.await?;
    Ok(Json(Deleted {
        id,
        object: "experience.deleted",
        deleted: true,
    }))
}

fn require_chat(caller: &Caller) -> Result<(), ApiError> {
    match caller.has_scope(Scope::Operator) {
        true => Ok(()),
        false => caller.require(Scope::Chat),
    }
}

/// Rejects an entry of another key as not found.
fn require_access(shared: &Shared, caller: &Caller, id: i64) -> Result<(), ApiError> {
    let entry = shared.journal.experience_entry(id)?;
    let is_accessible = entry.is_some_and(|entry| caller.can_access(entry.key.as_deref()));
    is_accessible.then_some(()).ok_or_else(|| unknown_entry(id))
}

fn entry_id(path: PathResult) -> Result<i64, ApiError> {
    let name = path_id(path)?;
    name.parse().map_err(|_| {
        let shown: String = name.chars().take(120).collect();
        ApiError::invalid(
            "id",
            format!("`{shown}` is not the id of an entry, which is a number"),
        )
    })
}

fn unknown_entry(id: i64) -> ApiError {
    ApiError::not_found(
        "unknown_experience",
        format!("there is no experience entry {id}"),
    )
}
