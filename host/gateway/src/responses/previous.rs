//! Recorded responses: retrieval by id, deletion, and the conversation that `previous_response_id` continues.

use clawhost_chat::{AssistantMessage, Message};
use clawhost_journal::{ForgetRecord, TurnRecord, TurnState};

use super::echo::RequestEcho;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::shared::Shared;

/// Finds the turn of a response that the caller can access and that was not requested with `store: false`.
pub(super) fn find_turn(
    shared: &Shared,
    caller: &Caller,
    id: &str,
) -> Result<Option<TurnRecord>, ApiError> {
    let turns = shared.journal.turns_of_response(id)?;
    Ok(turns
        .into_iter()
        .next()
        .filter(|turn| caller.can_access(turn.key.as_deref()))
        .filter(|turn| RequestEcho::from_turn(turn).is_none_or(|echo| echo.is_stored())))
}

/// Deletes a response of this dialect that the caller can access.
pub(super) fn forget_response(
    shared: &Shared,
    caller: &Caller,
    id: &str,
) -> Result<ForgetRecord, ApiError> {
    let turn = find_turn(shared, caller, id)?
        .filter(|turn| RequestEcho::from_turn(turn).is_some())
        .ok_or_else(|| response_not_found(id))?;
    if turn.state == TurnState::Generating {
        return Err(ApiError::conflict(
            "response_in_progress",
            "the response is still being generated; delete it when it is complete, or close its stream",
        ));
    }
    Ok(shared.journal.forget_response(&turn.response_id)?)
}

/// The 404 for a response that does not exist or that the caller cannot access.
pub(super) fn response_not_found(id: &str) -> ApiError {
    let shown: String = id.chars().take(120).collect();
    ApiError::not_found(
        "response_not_found",
        format!("response `{shown}` does not exist"),
    )
    .param("id")
}

/// The conversation up to and including an earlier reply, without its instructions, and its session if that belongs to the
/// caller: an operator can continue any reply, but not add to the sessions of other keys.
pub(super) fn load_conversation(
    shared: &Shared,
    caller: &Caller,
    id: &str,
) -> Result<(Vec<Message>, Option<String>), ApiError> {
    const PARAM: &str = "previous_response_id";
    let turn = find_turn(shared, caller, id)?.ok_or_else(|| {
        let shown: String = id.chars().take(120).collect();
        ApiError::bad_request(format!(
            "response `{shown}` does not exist; send the whole conversation as `input`"
        ))
        .param(PARAM)
        .code("previous_response_not_found")
    })?;
    let reply = match (&turn.state, &turn.completion) {
        (TurnState::Complete, Some(completion)) => completion.reply.clone(),
        (state, _) => {
            return Err(ApiError::invalid(
                PARAM,
                format!(
                    "the response is {state} and cannot be continued; send the conversation as `input`"
                ),
            ));
        }
    };
    let mut messages = turn.messages.clone();
    // Instructions apply to a single response.
    if RequestEcho::from_turn(&turn).is_some_and(|echo| echo.has_instructions()) {
        messages.remove(0);
    }
    // As a client would send it back, without the field that only the record has.
    messages.push(Message::Assistant(AssistantMessage {
        malformed_tool_calls: Vec::new(),
        ..reply
    }));
    let own = caller.owns(turn.key.as_deref());
    Ok((messages, own.then(|| turn.session.to_string())))
}
