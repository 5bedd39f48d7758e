//! `/v1/sessions` and `/v1/turns`: recorded sessions, explanations of what was trained, ending and deleting sessions.
//!
//! An operator can access all sessions; a chat key only those that it opened, all others are reported as not found. A
//! session is identified by its id, or by the name that the caller's key gave it.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use clawhost_journal::{SessionId, SessionRecord, TurnId, TurnRecord};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::journal_error::{from_journal, from_sessions};

/// Largest number of sessions in a listing.
const MAX_SESSIONS: u32 = 1000;

/// `?limit=` and `?include=`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct SessionQuery {
    limit: Option<u32>,
    include: Option<String>,
}

type QueryResult = Result<Query<SessionQuery>, QueryRejection>;
type PathResult = Result<Path<String>, PathRejection>;

/// Lists the sessions, the last active first.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    query: QueryResult,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let query = parse_query(query)?;
    let limit = query.limit.unwrap_or(100).clamp(1, MAX_SESSIONS);
    let sessions = shared
        .run_blocking(move |shared| {
            shared
                .journal
                .sessions(limit)
                .map_err(|error| from_journal(&error))
        })
        .await?;
    Ok(Json(json!({"object": "list", "data": sessions})))
}

/// Retrieves one session with its turns. Messages and tokens are omitted unless requested with
/// `?include=messages,tokens`, because every turn repeats the whole history.
pub(crate) async fn retrieve(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: PathResult,
    query: QueryResult,
) -> Result<Json<Value>, ApiError> {
    let include = parse_query(query)?.include.unwrap_or_default();
    let is_included = move |part: &str| include.split(',').any(|name| name.trim() == part);
    let (messages, tokens) = (is_included("messages"), is_included("tokens"));
    let session = find_visible(&shared, &caller, path)?;
    let id = session.id.clone();
    let turns = shared
        .run_blocking(move |shared| {
            shared
                .journal
                .session_turns(&id)
                .map_err(|error| from_journal(&error))
        })
        .await?
        .iter()
        .map(|turn| turn_json(turn, messages, tokens))
        .collect::<Result<Vec<_>, _>>()?;
    let mut body = to_json(&session)?;
    if let Some(body) = body.as_object_mut() {
        body.insert("object".into(), "session".into());
        body.insert("turns".into(), turns.into());
    }
    Ok(Json(body))
}

/// Explains every turn of a session: how it was matched, its next state, verdicts, sample and training step, or why it
/// has none.
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    let session = find_visible(&shared, &caller, path)?;
    let id = session.id.clone();
    let explanation = shared
        .run_blocking(move |shared| {
            shared
                .sessions
                .explain(&id)
                .map_err(|error| from_sessions(&error))
        })
        .await?;
    explanation
        .map(Json)
        .ok_or_else(|| unknown_session(&session.id.0))
}

/// Explains one turn.
pub(crate) async fn explain_turn(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    let name = path_id(path)?;
    let id: TurnId = name.parse().map_err(|_| {
        ApiError::invalid(
            "id",
            format!("`{}` is not a turn id, which is a number", truncate(&name)),
        )
    })?;
    let unknown = || ApiError::not_found("unknown_turn", format!("there is no turn {id}"));
    if !caller.has_scope(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let turn = shared
        .journal
        .turn(id)
        .map_err(|error| from_journal(&error))?
        .filter(|turn| caller.can_access(turn.key.as_deref()))
        .ok_or_else(unknown)?;
    let explanation = shared
        .sessions
        .explain_turn(turn.id)
        .map_err(|error| from_sessions(&error))?;
    explanation.map(Json).ok_or_else(unknown)
}

/// Ends a session: its last replies get no next state.
pub(crate) async fn done(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    let session = find_visible(&shared, &caller, path)?;
    shared
        .sessions
        .end_session(&session.id)
        .map_err(|error| from_sessions(&error))?;
    Ok(Json(
        json!({"id": session.id, "object": "session", "done": true}),
    ))
}

/// Deletes the records of a session: its turns, verdicts and samples. The response lists the adapters that were trained
/// on it.
pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    let session = find_visible(&shared, &caller, path)?;
    let id = session.id.clone();
    let deleted = shared
        .run_blocking(move |shared| {
            shared
                .journal
                .forget_session(&id)
                .map_err(|error| from_journal(&error))
        })
        .await?;
    tracing::info!(session = %session.id, key = caller.name(), "session deleted");
    Ok(Json(json!({
        "id": session.id,
        "object": "session.deleted",
        "deleted": true,
        "forgotten": deleted,
    })))
}

/// Finds the session of the path if the caller can access it.
fn find_visible(
    shared: &Shared,
    caller: &Caller,
    path: PathResult,
) -> Result<SessionRecord, ApiError> {
    if !caller.has_scope(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let name = path_id(path)?;
    find_accessible(shared, caller, &name)?.ok_or_else(|| unknown_session(&name))
}

/// Finds the session with this id if the caller can access it, else the session that the caller's key gave this name.
pub(crate) fn find_accessible(
    shared: &Shared,
    caller: &Caller,
    name: &str,
) -> Result<Option<SessionRecord>, ApiError> {
    let to_api_error = |error| from_journal(&error);
    let by_id = shared.journal.session(&SessionId::from(name));
    match by_id.map_err(to_api_error)? {
        Some(session) if caller.can_access(session.key.as_deref()) => Ok(Some(session)),
        _ => shared
            .journal
            .find_session(caller.name(), name)
            .map_err(to_api_error),
    }
}

pub(crate) fn unknown_session(id: &str) -> ApiError {
    ApiError::not_found(
        "unknown_session",
        format!("session `{}` does not exist", truncate(id)),
    )
}

/// A turn as JSON, without the parts that were not requested.
fn turn_json(turn: &TurnRecord, messages: bool, tokens: bool) -> Result<Value, ApiError> {
    let mut turn = to_json(turn)?;
    let mut drop_from = |path: &str, names: &[&str]| {
        if let Some(object) = turn.pointer_mut(path).and_then(Value::as_object_mut) {
            for name in names {
                object.shift_remove(*name);
            }
        }
    };
    if !messages {
        drop_from("", &["messages", "tools"]);
    }
    if !tokens {
        drop_from("", &["prompt_ids"]);
        drop_from(
            "/completion",
            &["token_ids", "logprobs", "full_logprobs", "forced"],
        );
    }
    Ok(turn)
}

fn to_json(value: &impl serde::Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(value).map_err(|error| {
        tracing::error!(%error, "cannot serialize a record");
        ApiError::internal(
            "record_unreadable",
            "the record could not be serialized; see the server log for the cause",
        )
    })
}

fn path_id(path: PathResult) -> Result<String, ApiError> {
    path.map(|Path(name)| name)
        .map_err(|_| ApiError::invalid("id", "the id in the path is not UTF-8"))
}

fn parse_query(query: QueryResult) -> Result<SessionQuery, ApiError> {
    query
        .map(|Query(query)| query)
        .map_err(|error| ApiError::bad_request(error.body_text()).code("invalid_query"))
}

fn truncate(text: &str) -> String {
    text.chars().take(120).collect()
}
