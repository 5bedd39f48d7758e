//! `/v1/sessions` and `/v1/turns`: recorded sessions, explanations of what was trained, ending and deleting sessions.
//!
//! An operator can access all sessions; a chat key only those that it opened, all others are reported as not found. A
//! session is identified by its id, or by the name that the caller's key gave it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use clawhost_journal::{ForgetRecord, SessionId, SessionRecord, TurnId, TurnRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::{Client, Shared};

/// Largest number of sessions in a listing.
const MAX_SESSIONS: u32 = 1000;

/// `?limit=` and `?include=`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct SessionQuery {
    limit: Option<u32>,
    include: Option<String>,
}

/// Sessions, the last active first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    #[schemars(with = "Vec<SessionSummary>")]
    data: Vec<SessionRecord>,
}

/// A deleted session.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Forgotten {
    #[schemars(with = "String")]
    id: SessionId,
    #[schemars(extend("const" = "session.deleted"))]
    object: &'static str,
    #[schemars(extend("const" = true))]
    deleted: bool,
    /// What was deleted, and the adapters that were trained on it.
    #[schemars(with = "Map<String, Value>")]
    forgotten: ForgetRecord,
}

/// A session that has ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Done {
    #[schemars(with = "String")]
    id: SessionId,
    #[schemars(extend("const" = "session"))]
    object: &'static str,
    #[schemars(extend("const" = true))]
    done: bool,
}

/// Fields of a session of the journal.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct SessionFields {
    id: String,
    /// Unique among the sessions of one key.
    name: String,
    /// How the session was identified.
    origin: String,
    /// Name of the key.
    key: Option<String>,
    /// Name of the end user.
    user: Option<String>,
    /// Unix milliseconds.
    started_ms: i64,
    /// Unix milliseconds of the last turn.
    last_ms: i64,
    /// Unix milliseconds.
    ended_ms: Option<i64>,
    end_reason: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct SessionSummary {
    #[schemars(flatten)]
    session: SessionFields,
    /// Number of turns.
    turns: u64,
}

/// A session with its turns.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Session {
    #[schemars(flatten)]
    session: SessionFields,
    #[schemars(extend("const" = "session"))]
    object: String,
    turns: Vec<TurnFields>,
}

/// A turn; it has further fields.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct TurnFields {
    id: i64,
    /// Position in the session.
    seq: u64,
    response_id: String,
    state: TurnStateName,
    judging: Value,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum TurnStateName {
    Generating,
    Complete,
    Aborted,
    Failed,
}

type QueryResult = Result<Query<SessionQuery>, QueryRejection>;
pub(crate) type PathResult = Result<Path<String>, PathRejection>;

/// Lists the sessions, the last active first.
pub(crate) async fn list(
    Client { shared, caller }: Client,
    query: QueryResult,
) -> Result<Json<SessionList>, ApiError> {
    caller.require(Scope::Operator)?;
    let query = parse_query(query)?;
    let limit = query.limit.unwrap_or(100).clamp(1, MAX_SESSIONS);
    let data = shared.query(move |journal| journal.sessions(limit)).await?;
    Ok(Json(SessionList {
        object: "list",
        data,
    }))
}

/// Retrieves one session with its turns. Messages and tokens are omitted unless requested with
/// `?include=messages,tokens`, because every turn repeats the whole history.
pub(crate) async fn retrieve(
    Client { shared, caller }: Client,
    path: PathResult,
    query: QueryResult,
) -> Result<Json<Value>, ApiError> {
    let include = parse_query(query)?.include.unwrap_or_default();
    let is_included = move |part: &str| include.split(',').any(|name| name.trim() == part);
    let (messages, tokens) = (is_included("messages"), is_included("tokens"));
    let session = find_visible(&shared, &caller, path).await?;
    let id = session.id.clone();
    let turns = shared.query(move |journal| journal.session_turns(&id));
    let turns = turns.await?;
    let turns = turns.iter().map(|turn| turn_json(turn, messages, tokens));
    let mut body = to_json(&session)?;
    body["object"] = "session".into();
    body["turns"] = turns.collect::<Result<_, _>>()?;
    Ok(Json(body))
}

/// Explains every turn of a session: how it was matched, its next state, verdicts, sample and training step, or why it
/// has none.
pub(crate) async fn explain(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    let session = find_visible(&shared, &caller, path).await?;
    let id = session.id.clone();
    let explanation = shared.query(move |journal| clawhost_inspect::explain_session(journal, &id));
    let explanation = explanation.await?;
    explanation
        .map(Json)
        .ok_or_else(|| unknown_session(&session.id.0))
}

/// Explains one turn.
pub(crate) async fn explain_turn(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<Value>, ApiError> {
    let name = path_id(path)?;
    let id: TurnId = name.parse().map_err(|_| {
        ApiError::invalid(
            "id",
            format!("`{}` is not a turn id, which is a number", truncate(&name)),
        )
    })?;
    let unknown = move || ApiError::not_found("unknown_turn", format!("there is no turn {id}"));
    if !caller.has_scope(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let explanation = shared
        .run_blocking(move |shared| {
            let turn = shared.journal.turn(id)?;
            turn.filter(|turn| caller.can_access(turn.key.as_deref()))
                .ok_or_else(unknown)?;
            Ok(clawhost_inspect::explain_turn(&shared.journal, id)?)
        })
        .await?;
    explanation.map(Json).ok_or_else(unknown)
}

/// Ends a session: its last replies get no next state.
pub(crate) async fn done(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<Done>, ApiError> {
    let session = find_visible(&shared, &caller, path).await?;
    let id = session.id.clone();
    shared
        .run_blocking(move |shared| Ok(shared.sessions.end_session(&id)?))
        .await?;
    Ok(Json(Done {
        id: session.id,
        object: "session",
        done: true,
    }))
}

/// Deletes the records of a session: its turns, verdicts and samples. The response lists the adapters that were trained
/// on it.
pub(crate) async fn delete(
    Client { shared, caller }: Client,
    path: PathResult,
) -> Result<Json<Forgotten>, ApiError> {
    let session = find_visible(&shared, &caller, path).await?;
    let id = session.id.clone();
    let forgotten = shared.query(move |journal| journal.forget_session(&id));
    let forgotten = forgotten.await?;
    tracing::info!(session = %session.id, key = caller.name(), "session deleted");
    Ok(Json(Forgotten {
        id: session.id,
        object: "session.deleted",
        deleted: true,
        forgotten,
    }))
}

/// Finds the session of the path if the caller can access it.
async fn find_visible(
    shared: &Arc<Shared>,
    caller: &Caller,
    path: PathResult,
) -> Result<SessionRecord, ApiError> {
    if !caller.has_scope(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let name = path_id(path)?;
    let caller = caller.clone();
    shared
        .run_blocking(move |shared| {
            find_accessible(shared, &caller, &name)?.ok_or_else(|| unknown_session(&name))
        })
        .await
}

/// Finds the session with this id if the caller can access it, else the session that the caller's key gave this name.
pub(crate) fn find_accessible(
    shared: &Shared,
    caller: &Caller,
    name: &str,
) -> Result<Option<SessionRecord>, ApiError> {
    match shared.journal.session(&SessionId::from(name))? {
        Some(session) if caller.can_access(session.key.as_deref()) => Ok(Some(session)),
        _ => Ok(shared.journal.find_session(caller.name(), name)?),
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

/// The id in a path.
pub(crate) fn path_id(path: PathResult) -> Result<String, ApiError> {
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
