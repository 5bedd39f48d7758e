//! `POST /v1/feedback`: what a person thought of a reply, at any time later.
//!
//! A reply is named by the `id` of its response, by its turn (header `x-clawhost-turn`), or by its
//! session and position. What is ambiguous is refused: feedback on the wrong reply teaches the wrong thing. A key scores
//! its own replies, the operator those of all; of the others a key does not learn that they exist.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use clawhost_journal::{Feedback, TurnId, TurnRecord, TurnState, now_ms};
use serde_json::{Value, json};

use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::Shared;
use crate::{recorded, sessions};

/// Bytes of a feedback body; a text of a few pages.
const MAX_BODY: usize = 256 << 10;

/// Records a score from -1 to 1, a text, or both.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    if let Err(error) = caller.require(Scope::Feedback) {
        body::discard(request).await;
        return Err(error);
    }
    let max = MAX_BODY.min(shared.options.max_body);
    let body = body::read_json(request, max, shared.options.read_timeout).await?;
    let fields = Fields::of(&body, "")?;
    let score = fields.number("score", -1.0, 1.0)?;
    let text = fields
        .text("text")?
        .filter(|text| !text.trim().is_empty())
        .map(str::to_owned);
    if score.is_none() && text.is_none() {
        return Err(ApiError::invalid(
            "score",
            "feedback needs a `score` from -1 to 1, a `text`, or both",
        ));
    }
    let turn = find(&shared, &caller, fields)?;
    match turn.state {
        TurnState::Complete => {}
        TurnState::Generating => {
            return Err(ApiError::conflict(
                "turn_not_complete",
                format!(
                    "turn {} is still being generated; send feedback when it is done",
                    turn.id
                ),
            ));
        }
        TurnState::Aborted | TurnState::Failed => {
            return Err(ApiError::conflict(
                "turn_not_complete",
                format!(
                    "turn {} is {}, so it cannot be learned from",
                    turn.id, turn.state
                ),
            ));
        }
    }
    let id = shared
        .journal
        .add_feedback(&Feedback {
            turn: turn.id,
            score: score.map(|score| score as f32),
            text,
            ms: now_ms(),
        })
        .map_err(|error| recorded::refusal(&error))?;
    Ok(Json(json!({
        "id": id,
        "object": "feedback",
        "turn": turn.id,
        "session": turn.session,
        "response_id": turn.response_id,
        "score": score,
    })))
}

/// The one turn that the body names, among those that the caller may reach.
fn find(shared: &Shared, caller: &Caller, fields: Fields<'_, '_>) -> Result<TurnRecord, ApiError> {
    let refuse = |error| recorded::refusal(&error);
    let reached = |turn: &TurnRecord| caller.may_reach(turn.key.as_deref());
    if let Some(response) = fields.text("response_id")? {
        let mut turns = shared.journal.turns_of_response(response).map_err(refuse)?;
        turns.retain(reached);
        return choose(fields, turns);
    }
    if let Some(turn) = fields.integer("turn_id", 1, i64::MAX)? {
        let found = shared.journal.turn(TurnId(turn)).map_err(refuse)?;
        return found.filter(reached).ok_or_else(|| {
            ApiError::not_found("unknown_turn", format!("there is no turn {turn}")).param("turn_id")
        });
    }
    if let Some(session) = fields.text("session_id")? {
        let found = sessions::reachable(shared, caller, session)?
            .ok_or_else(|| sessions::unknown_session(session).param("session_id"))?;
        let turns = shared.journal.session_turns(&found.id).map_err(refuse)?;
        let position = fields.integer("turn", 0, i64::from(u32::MAX))?;
        let found = match position {
            Some(position) => turns
                .into_iter()
                .find(|turn| i64::from(turn.seq) == position),
            None => turns
                .into_iter()
                .rfind(|turn| turn.state == TurnState::Complete),
        };
        return found.ok_or_else(|| {
            ApiError::not_found(
                "unknown_turn",
                match position {
                    Some(position) => format!("session `{session}` has no turn {position}"),
                    None => format!("session `{session}` has no complete reply yet"),
                },
            )
            .param("turn")
        });
    }
    Err(ApiError::bad_request(
        "name the reply by `response_id`, by `turn_id`, or by `session_id` and `turn`",
    )
    .param("response_id")
    .code("missing_required_parameter"))
}

/// The turn of a response; with several choices the body must say which.
fn choose(fields: Fields<'_, '_>, mut turns: Vec<TurnRecord>) -> Result<TurnRecord, ApiError> {
    let choice = fields.integer("choice", 0, i64::from(u32::MAX))?;
    if choice.is_none() && turns.len() > 1 {
        return Err(ApiError::invalid(
            "choice",
            format!(
                "this response has {} choices; say with `choice` which one is meant",
                turns.len()
            ),
        ));
    }
    let wanted = choice.unwrap_or(0);
    turns.retain(|turn| i64::from(turn.choice) == wanted);
    turns.pop().ok_or_else(|| {
        ApiError::not_found("unknown_response", "there is no such response or choice")
            .param("response_id")
    })
}
