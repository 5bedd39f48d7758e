//! `POST /v1/feedback`: a user's score or comment for a reply, at any later time.
//!
//! A reply is identified by the `id` of its response, by its turn (header `x-clawhost-turn`), or by its session and
//! position. Ambiguous requests are rejected: feedback on the wrong reply would train the wrong behaviour. A key can score
//! its own replies, an operator all replies; replies of other keys are reported as not found.

use axum::Json;
use axum::extract::Request;
use clawhost_journal::{Feedback, SessionId, TurnId, TurnRecord, TurnState, now_ms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::parse::{Count, Int, Number, parse};
use crate::sessions;
use crate::shared::{Client, Shared};

/// Largest request body in bytes.
const MAX_BODY: usize = 256 << 10;

/// Feedback on a reply, which is identified by `response_id` (and `choice`), by `turn_id`, or by `session_id` (and `turn`).
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "FeedbackRequest")]
pub(crate) struct FeedbackFields {
    /// Id of the response.
    response_id: Option<String>,
    /// Index of the choice; required if the response has several.
    choice: Option<Count<0>>,
    /// The `x-clawhost-turn` of the response.
    turn_id: Option<Int<1, { i64::MAX }>>,
    /// Session of the reply: its id, or the name that this key gave it.
    session_id: Option<String>,
    /// Position in the session. Default: the last complete reply.
    turn: Option<Count<0>>,
    /// From -1, bad, to 1, good.
    score: Option<Number<-100, 100>>,
    /// A comment.
    text: Option<String>,
}

/// Recorded feedback.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FeedbackAnswer {
    id: i64,
    #[schemars(extend("const" = "feedback"))]
    object: &'static str,
    #[schemars(with = "i64")]
    turn: TurnId,
    #[schemars(with = "String")]
    session: SessionId,
    response_id: String,
    score: Option<f64>,
}

/// Records a score from -1 to 1, a comment, or both.
pub(crate) async fn create(
    Client { shared, caller }: Client,
    request: Request,
) -> Result<Json<FeedbackAnswer>, ApiError> {
    let body = shared
        .read_json(&caller, Scope::Feedback, request, MAX_BODY)
        .await?;
    let recorded = shared.run_blocking(move |shared| record(shared, &caller, &body));
    Ok(Json(recorded.await?))
}

/// Records the feedback of a body; returns the response.
fn record(shared: &Shared, caller: &Caller, body: &Value) -> Result<FeedbackAnswer, ApiError> {
    let fields: FeedbackFields = parse(body)?;
    let score = fields.score.map(Number::get);
    let text = fields.text.clone().filter(|text| !text.trim().is_empty());
    if score.is_none() && text.is_none() {
        return Err(ApiError::invalid(
            "score",
            "feedback needs a `score` from -1 to 1, a `text`, or both",
        ));
    }
    let turn = find_turn(shared, caller, &fields)?;
    let reason = match turn.state {
        TurnState::Complete => None,
        TurnState::Generating => {
            Some("still being generated; send feedback when it is complete".to_owned())
        }
        state => Some(format!("{state}, so it cannot be trained on")),
    };
    if let Some(reason) = reason {
        let message = format!("turn {} is {reason}", turn.id);
        return Err(ApiError::conflict("turn_not_complete", message));
    }
    let id = shared.journal.add_feedback(&Feedback {
        turn: turn.id,
        score: score.map(|score| score as f32),
        text,
        ms: now_ms(),
    })?;
    Ok(FeedbackAnswer {
        id,
        object: "feedback",
        turn: turn.id,
        session: turn.session,
        response_id: turn.response_id,
        score,
    })
}

/// Finds the turn that the body identifies, among those that the caller can access.
fn find_turn(
    shared: &Shared,
    caller: &Caller,
    fields: &FeedbackFields,
) -> Result<TurnRecord, ApiError> {
    let accessible = |turn: &TurnRecord| caller.can_access(turn.key.as_deref());
    if let Some(response) = &fields.response_id {
        let mut turns = shared.journal.turns_of_response(response)?;
        turns.retain(accessible);
        return select_choice(fields.choice.map(Count::get), turns);
    }
    if let Some(turn) = fields.turn_id.map(Int::get) {
        let found = shared.journal.turn(TurnId(turn))?;
        return found.filter(accessible).ok_or_else(|| {
            ApiError::not_found("unknown_turn", format!("there is no turn {turn}")).param("turn_id")
        });
    }
    if let Some(session) = &fields.session_id {
        let found = sessions::find_accessible(shared, caller, session)?
            .ok_or_else(|| sessions::unknown_session(session).param("session_id"))?;
        let mut turns = shared.journal.session_turns(&found.id)?.into_iter();
        let position = fields.turn.map(Count::get);
        let found = match position {
            Some(position) => turns.find(|turn| i64::from(turn.seq) == position),
            None => turns.rfind(|turn| turn.state == TurnState::Complete),
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
fn select_choice(choice: Option<i64>, mut turns: Vec<TurnRecord>) -> Result<TurnRecord, ApiError> {
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
