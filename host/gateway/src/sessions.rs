//! `/v1/sessions` and `/v1/turns`: what was collected, why it did or did not train, and how to end or
//! forget it.
//!
//! The operator sees everything; a chat key sees the sessions that it opened, and of the others not
//! even that they exist. A session is named by its id, or by the name that the caller's own key gave it.

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
use crate::recorded::{refusal, session_refusal};

/// Sessions in one answer.
const MAX_SESSIONS: u32 = 1000;

/// `?limit=` and `?include=`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Asked {
    limit: Option<u32>,
    include: Option<String>,
}

type AskedFor = Result<Query<Asked>, QueryRejection>;
type Named = Result<Path<String>, PathRejection>;

/// All sessions, the last active first.
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    asked: AskedFor,
) -> Result<Json<Value>, ApiError> {
    caller.require(Scope::Operator)?;
    let asked = query(asked)?;
    let limit = asked.limit.unwrap_or(100).clamp(1, MAX_SESSIONS);
    let sessions = shared
        .ask(move |shared| {
            shared
                .journal
                .sessions(limit)
                .map_err(|error| refusal(&error))
        })
        .await?;
    Ok(Json(json!({"object": "list", "data": sessions})))
}

/// One session with its turns. Prompts and tokens are left out unless `?include=messages,tokens` asks
/// for them, since every turn repeats the whole history.
pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    named: Named,
    asked: AskedFor,
) -> Result<Json<Value>, ApiError> {
    let include = query(asked)?.include.unwrap_or_default();
    let asked_for = move |part: &str| include.split(',').any(|given| given.trim() == part);
    let (messages, tokens) = (asked_for("messages"), asked_for("tokens"));
    let session = visible(&shared, &caller, named)?;
    let id = session.id.clone();
    let turns = shared
        .ask(move |shared| {
            shared
                .journal
                .session_turns(&id)
                .map_err(|error| refusal(&error))
        })
        .await?
        .iter()
        .map(|turn| shown(turn, messages, tokens))
        .collect::<Result<Vec<_>, _>>()?;
    let mut body = to_json(&session)?;
    if let Some(body) = body.as_object_mut() {
        body.insert("object".into(), "session".into());
        body.insert("turns".into(), turns.into());
    }
    Ok(Json(body))
}

/// Every turn of a session: how it was matched, what followed, its verdicts, sample and step, or why not.
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Result<Json<Value>, ApiError> {
    let session = visible(&shared, &caller, named)?;
    let id = session.id.clone();
    let explained = shared
        .ask(move |shared| {
            shared
                .sessions
                .explain(&id)
                .map_err(|error| session_refusal(&error))
        })
        .await?;
    explained
        .map(Json)
        .ok_or_else(|| unknown_session(&session.id.0))
}

/// The same for one turn.
pub(crate) async fn explain_turn(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Result<Json<Value>, ApiError> {
    let name = name(named)?;
    let id: TurnId = name.parse().map_err(|_| {
        ApiError::invalid(
            "id",
            format!("`{}` is not the number of a turn", short(&name)),
        )
    })?;
    let unknown = || ApiError::not_found("unknown_turn", format!("there is no turn {id}"));
    if !caller.may(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let turn = shared
        .journal
        .turn(id)
        .map_err(|error| refusal(&error))?
        .filter(|turn| caller.may_reach(turn.key.as_deref()))
        .ok_or_else(unknown)?;
    let explained = shared
        .sessions
        .explain_turn(turn.id)
        .map_err(|error| session_refusal(&error))?;
    explained.map(Json).ok_or_else(unknown)
}

/// Ends a session: its last replies will get no next state.
pub(crate) async fn done(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Result<Json<Value>, ApiError> {
    let session = visible(&shared, &caller, named)?;
    shared
        .sessions
        .done(&session.id)
        .map_err(|error| session_refusal(&error))?;
    Ok(Json(
        json!({"id": session.id, "object": "session", "done": true}),
    ))
}

/// Forgets a session: its turns, verdicts and samples are gone; the answer lists the adapters that had
/// learned from it.
pub(crate) async fn forget(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Result<Json<Value>, ApiError> {
    let session = visible(&shared, &caller, named)?;
    let id = session.id.clone();
    let forgotten = shared
        .ask(move |shared| {
            shared
                .journal
                .forget_session(&id)
                .map_err(|error| refusal(&error))
        })
        .await?;
    tracing::info!(session = %session.id, key = caller.name(), "a session was forgotten");
    Ok(Json(json!({
        "id": session.id,
        "object": "session.deleted",
        "deleted": true,
        "forgotten": forgotten,
    })))
}

/// The session that the path names, when the caller may see it.
fn visible(shared: &Shared, caller: &Caller, named: Named) -> Result<SessionRecord, ApiError> {
    if !caller.may(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let name = name(named)?;
    reachable(shared, caller, &name)?.ok_or_else(|| unknown_session(&name))
}

/// The session with this id if the caller may reach it, else the one that the caller's own key calls by this name.
pub(crate) fn reachable(
    shared: &Shared,
    caller: &Caller,
    name: &str,
) -> Result<Option<SessionRecord>, ApiError> {
    let refuse = |error| refusal(&error);
    let by_id = shared.journal.session(&SessionId::from(name));
    match by_id.map_err(refuse)? {
        Some(session) if caller.may_reach(session.key.as_deref()) => Ok(Some(session)),
        _ => shared
            .journal
            .session_of(caller.name(), name)
            .map_err(refuse),
    }
}

pub(crate) fn unknown_session(id: &str) -> ApiError {
    ApiError::not_found(
        "unknown_session",
        format!("there is no session `{}`", short(id)),
    )
}

/// A turn without the parts that nobody asked for.
fn shown(turn: &TurnRecord, messages: bool, tokens: bool) -> Result<Value, ApiError> {
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
        tracing::error!(%error, "a record could not be written as JSON");
        ApiError::internal(
            "record_unreadable",
            "the record could not be written as JSON",
        )
    })
}

fn name(named: Named) -> Result<String, ApiError> {
    named
        .map(|Path(name)| name)
        .map_err(|_| ApiError::invalid("id", "the id in the path is not UTF-8"))
}

fn query(asked: AskedFor) -> Result<Asked, ApiError> {
    asked
        .map(|Query(asked)| asked)
        .map_err(|error| ApiError::bad_request(error.body_text()).code("invalid_query"))
}

fn short(text: &str) -> String {
    text.chars().take(120).collect()
}
