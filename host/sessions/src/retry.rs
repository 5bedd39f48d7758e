//! Retry detection: the same request again, because the client lost the response or the user wants another one. Its reply
//! joins the group of the first, and it is no feedback on the first.
//!
//! A request that contains a reply of ours belongs to one conversation, so an identical request is a retry. For an
//! *opening* request that is not enough: many users start with "hi", and may share one API key. It counts as a retry only
//! with the same client request id or the same trace, or if the first reply was cut off and no other session began with
//! this request. Otherwise a new session is opened: mixing two users' conversations is worse than missing a retry.

use std::time::Duration;

use clawhost_journal::{SessionId, TurnId, TurnState, TurnSummary};

use crate::SessionError;
use crate::lookup::{Caller, Lookup};

/// Maximum duration of a reply. The retry window counts from the end of the reply, so the search reaches back this much
/// further.
const LONGEST_REPLY_MS: i64 = 30 * 60 * 1000;

/// The request that a retry repeats.
pub(crate) struct RetryMatch {
    /// Its newest turn.
    pub(crate) turn: TurnSummary,
    /// Why this is a retry, as a clause.
    pub(crate) why: String,
}

/// An earlier identical request that continues the same reply.
pub(crate) fn retry_of_continuation(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    digest: &str,
    parent: TurnId,
) -> Result<Option<RetryMatch>, SessionError> {
    let same = lookup
        .turns_with_request(digest, caller.key, 0)?
        .into_iter()
        .find(|hit| hit.parent == Some(parent));
    Ok(same.map(|turn| {
        let when = match turn.state {
            TurnState::Generating => "while it is still being answered",
            TurnState::Complete => "after its answer",
            TurnState::Aborted | TurnState::Failed => "after its answer was cut off",
        };
        RetryMatch {
            why: format!("the same request as turn {}, {when}", turn.id),
            turn,
        }
    }))
}

/// An earlier identical request under the same session id, within the window.
pub(crate) fn retry_of_named(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    digest: &str,
    session: &SessionId,
    now_ms: i64,
    window: Duration,
) -> Result<Option<RetryMatch>, SessionError> {
    let hits = recent(lookup, caller, digest, now_ms, window)?;
    Ok(hits
        .into_iter()
        .find(|hit| hit.session == *session)
        .map(|turn| RetryMatch {
            why: format!("the same request as turn {} of the named session", turn.id),
            turn,
        }))
}

/// An earlier identical opening request with evidence that it is of the same conversation.
pub(crate) fn retry_of_opening(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Option<RetryMatch>, SessionError> {
    let mut hits = recent(lookup, caller, digest, now_ms, window)?;
    hits.retain(|hit| hit.parent.is_none() && caller.exclusion_reason(hit).is_none());
    let by_id = hits.iter().find(|hit| caller.same_request(hit));
    let by_trace = || hits.iter().find(|hit| caller.same_trace(hit));
    let cut_off = || {
        let newest = hits.first()?;
        let cut = matches!(newest.state, TurnState::Aborted | TurnState::Failed);
        let alone = hits.iter().all(|hit| hit.session == newest.session);
        (cut && alone).then_some(newest)
    };
    let proved = by_id
        .map(|turn| (turn, "with the same request id"))
        .or_else(|| by_trace().map(|turn| (turn, "in the same trace")))
        .or_else(|| cut_off().map(|turn| (turn, "whose answer was cut off")));
    Ok(proved.map(|(turn, why)| RetryMatch {
        why: format!("the same request as turn {}, {why}", turn.id),
        turn: turn.clone(),
    }))
}

/// The newest recent turn with the request `digest`, which the current request extends; only if all such turns are of
/// one session.
pub(crate) fn find_extended_request(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Option<TurnSummary>, SessionError> {
    let mut hits = recent(lookup, caller, digest, now_ms, window)?;
    hits.retain(|hit| caller.exclusion_reason(hit).is_none());
    let Some(newest) = hits.first().cloned() else {
        return Ok(None);
    };
    Ok(hits
        .iter()
        .all(|hit| hit.session == newest.session)
        .then_some(newest))
}

fn recent(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Vec<TurnSummary>, SessionError> {
    let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    let since = now_ms
        .saturating_sub(window_ms)
        .saturating_sub(LONGEST_REPLY_MS);
    let mut hits = lookup.turns_with_request(digest, caller.key, since)?;
    hits.retain(|hit| {
        now_ms.saturating_sub(
            hit.completed_ms
                .unwrap_or(hit.received_ms)
                .max(hit.received_ms),
        ) <= window_ms
    });
    Ok(hits)
}
