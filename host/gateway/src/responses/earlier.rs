//! An earlier reply, as the journal has it: what `previous_response_id` continues and what is read back by id.

use clawhost_journal::{Forgotten, TurnRecord, TurnState};
use clawhost_sessions::MALFORMED_CALLS;
use serde_json::Value;

use super::echo::Echo;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::recorded;

/// The turn of a response that the caller may see and that was not asked to be kept from being read back.
pub(super) fn find(
    shared: &Shared,
    caller: &Caller,
    id: &str,
) -> Result<Option<TurnRecord>, ApiError> {
    let turns = shared
        .journal
        .turns_of_response(id)
        .map_err(|error| recorded::refusal(&error))?;
    Ok(turns
        .into_iter()
        .next()
        .filter(|turn| caller.may_reach(turn.key.as_deref()))
        .filter(|turn| Echo::of(turn).is_none_or(|echo| echo.stored())))
}

/// Forgets a response of this dialect that the caller may see.
pub(super) fn forget(shared: &Shared, caller: &Caller, id: &str) -> Result<Forgotten, ApiError> {
    let turn = find(shared, caller, id)?
        .filter(|turn| Echo::of(turn).is_some())
        .ok_or_else(|| unknown(id))?;
    if turn.state == TurnState::Generating {
        return Err(ApiError::conflict(
            "response_in_progress",
            "the response is still being generated; delete it when it is done, or close its stream",
        ));
    }
    shared
        .journal
        .forget_response(&turn.response_id)
        .map_err(|error| recorded::refusal(&error))
}

/// 404 for a response that is not there, or not for this caller.
pub(super) fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(120).collect();
    ApiError::not_found(
        "response_not_found",
        format!("there is no response `{shown}` to read back"),
    )
    .param("id")
}

/// The conversation up to and with an earlier reply, without the instructions that it was given; and its session, if it
/// is one of the caller's own: an operator may read on from anybody's reply, but not write into anybody's session.
pub(super) fn conversation(
    shared: &Shared,
    caller: &Caller,
    id: &str,
) -> Result<(Vec<Value>, Option<String>), ApiError> {
    const PARAM: &str = "previous_response_id";
    let turn = find(shared, caller, id)?.ok_or_else(|| {
        let shown: String = id.chars().take(120).collect();
        ApiError::bad_request(format!(
            "there is no response `{shown}` to continue; send the whole conversation as `input`"
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
                    "the response is {state}, so it cannot be continued; send the conversation as `input`"
                ),
            ));
        }
    };
    let mut messages = match &turn.messages {
        Value::Array(messages) => messages.clone(),
        _ => Vec::new(),
    };
    // Instructions hold for one response only.
    if Echo::of(&turn).is_some_and(|echo| echo.instructed()) && !messages.is_empty() {
        messages.remove(0);
    }
    messages.push(said(reply));
    let own = caller.owns(turn.key.as_deref());
    Ok((messages, own.then(|| turn.session.to_string())))
}

/// A recorded reply as a client would send it back: without the marks of the record.
fn said(mut reply: Value) -> Value {
    if let Some(reply) = reply.as_object_mut() {
        reply.shift_remove(MALFORMED_CALLS);
    }
    reply
}
