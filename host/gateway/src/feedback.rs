//! `POST /v1/feedback`: a user's score or comment for a reply, at any later time.
//!
//! A reply is identified by the `id` of its response, by its turn (header `x-clawhost-turn`), or by its session and
//! position. Ambiguous requests are rejected: feedback on the wrong reply would train the wrong behaviour. A key can score
//! its own replies, an operator all replies; replies of other keys are reported as not found.

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
use crate::{journal_error, sessions};

/// Largest request body in bytes.
const MAX_BODY: usize = 256 << 10;

/// Records a score from -1 to 1, a comment, or both.
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
    let fields = Fields::new(&body, "")?;
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
    let turn = find_turn(&shared, &caller, fields)?;
    match turn.state {
        TurnState::Complete => {}
        TurnState::Generating => {
            return Err(ApiError::conflict(
                "turn_not_complete",
                format!(
                    "turn {} is still being generated; send feedback when it is complete",
                    turn.id
                ),
            ));
        }
        TurnState::Aborted | TurnState::Failed => {
            return Err(ApiError::conflict(
                "turn_not_complete",
                format!(
                    "turn {} is {}, so it cannot be trained on",
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
        .map_err(|error| journal_error::from_journal(&error))?;
    Ok(Json(json!({
        "id": id,
        "object": "feedback",
        "turn": turn.id,
        "session": turn.session,
        "response_id": turn.response_id,
        "score": score,
    })))
}

/// Finds the turn that the body identifies, among those that the caller can access.
fn find_turn(
    shared: &Shared,
    caller: &Caller,
    fields: Fields<'_, '_>,
) -> Result<TurnRecord, ApiError> {
    let to_api_error = |error| journal_error::from_journal(&error);
    let accessible = |turn: &TurnRecord| caller.can_access(turn.key.as_deref());
    if let Some(response) = fields.text("response_id")? {
        let mut turns = shared
            .journal
            .turns_of_response(response)
            .map_err(to_api_error)?;
        turns.retain(accessible);
        return select_choice(fields, turns);
    }
    if let Some(turn) = fields.integer("turn_id", 1, i64::MAX)? {
        let found = shared.journal.turn(TurnId(turn)).map_err(to_api_error)?;
        return found.filter(accessible).ok_or_else(|| {
            ApiError::not_found("unknown_turn", format!("there is no turn {turn}")).param("turn_id")
        });
    }
    if let Some(session) = fields.text("session_id")? {
        let found = sessions::find_accessible(shared, caller, session)?
            .ok_or_else(|| sessions::unknown_session(session).param("session_id"))?;
        let turns = shared
            .journal
            .session_turns(&found.id)
            .map_err(to_api_error)?;
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
        "identify the reply by `response_id`, by `turn_id`, or by `session_id` and `turn`",
    )
    .param("response_id")
    .code("missing_required_parameter"))
}

/// Selects the turn of a response by `choice`, which is required if the response has several choices.
fn select_choice(
    fields: Fields<'_, '_>,
    mut turns: Vec<TurnRecord>,
) -> Result<TurnRecord, ApiError> {
    let choice = fields.integer("choice", 0, i64::from(u32::MAX))?;
    if choice.is_none() && turns.len() > 1 {
        return Err(ApiError::invalid(
            "choice",
            format!(
                "this response has {} choices; set `choice` to the index of the one to score",
                turns.len()
            ),
        ));
    }
    let index = choice.unwrap_or(0);
    turns.retain(|turn| i64::from(turn.choice) == index);
    turns.pop().ok_or_else(|| {
        ApiError::not_found("unknown_response", "the response or choice does not exist")
            .param("response_id")
    })
}
