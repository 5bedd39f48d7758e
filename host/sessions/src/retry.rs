//! The same request again: a client that lost the answer or a person who wants another one. Its reply becomes a sibling
//! of the first, and it says nothing about the first.
//!
//! A request that contains a reply of ours is at home in one conversation, so the same again is a retry. An *opening* is
//! not: a thousand people begin with "hi". There it takes evidence that it is the same conversation; without it another
//! session is opened, because mixing two people's conversations is the worse mistake.

use std::collections::HashSet;
use std::time::Duration;

use clawhost_journal::{SessionId, TurnHit, TurnId, TurnState};

use crate::SessionError;
use crate::lookup::{Asker, Lookup};

/// How long a reply may take. A retry is looked for that much longer than the window, which counts from its end.
const LONGEST_REPLY_MS: i64 = 30 * 60 * 1000;
/// People ask again a few times, not more; beyond that an opening is simply a common one.
const SIBLINGS: usize = 4;

/// The request that is repeated.
pub(crate) struct Repeated {
    /// Its (newest) turn.
    pub(crate) turn: TurnHit,
    /// Why this is the same request again, as a clause.
    pub(crate) why: String,
}

/// An earlier request that continued the same reply with the same words.
pub(crate) fn of_continuation(
    lookup: &Lookup<'_>,
    digest: &str,
    parent: TurnId,
) -> Result<Option<Repeated>, SessionError> {
    let same = lookup
        .requests(digest, 0)?
        .into_iter()
        .find(|hit| hit.parent == Some(parent));
    Ok(same.map(|turn| {
        let when = match turn.state {
            TurnState::Generating => "while it is still being answered",
            TurnState::Complete => "after its answer",
            TurnState::Aborted | TurnState::Failed => "after its answer was cut off",
        };
        Repeated {
            why: format!("the same request as turn {}, {when}", turn.id),
            turn,
        }
    }))
}

/// An earlier identical request under the same session id, within the window.
pub(crate) fn of_named(
    lookup: &Lookup<'_>,
    digest: &str,
    session: &SessionId,
    now_ms: i64,
    window: Duration,
) -> Result<Option<Repeated>, SessionError> {
    let hits = recent(lookup, digest, now_ms, window)?;
    Ok(hits
        .into_iter()
        .find(|hit| hit.session == *session)
        .map(|turn| Repeated {
            why: format!("the same request as turn {} of the named session", turn.id),
            turn,
        }))
}

/// An earlier identical opening that is evidently of the same conversation.
pub(crate) fn of_opening(
    lookup: &Lookup<'_>,
    asker: &Asker<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Option<Repeated>, SessionError> {
    let mut hits = recent(lookup, digest, now_ms, window)?;
    hits.retain(|hit| hit.parent.is_none() && asker.stranger_to(hit).is_none());
    if let Some(turn) = hits.iter().find(|hit| asker.same_trace(hit)) {
        let why = format!("the same request as turn {}, in the same trace", turn.id);
        return Ok(Some(Repeated {
            turn: turn.clone(),
            why,
        }));
    }
    let Some(newest) = hits.first() else {
        return Ok(None);
    };
    let group = || hits.iter().filter(|hit| hit.group == newest.group);
    let why = match newest.state {
        TurnState::Aborted | TurnState::Failed => "whose answer was cut off",
        // Both clients are still listening: two conversations, not one that asks again.
        TurnState::Generating => return Ok(None),
        TurnState::Complete => {
            let elsewhere = hits.iter().any(|hit| hit.session != newest.session);
            let known = asker.user.is_some();
            let asked: HashSet<&str> = group().map(|hit| hit.response_id.as_str()).collect();
            if group().any(|hit| hit.has_next) || asked.len() >= SIBLINGS || (elsewhere && !known) {
                return Ok(None);
            }
            "which nothing has followed yet"
        }
    };
    Ok(Some(Repeated {
        why: format!("the same request as turn {}, {why}", newest.id),
        turn: newest.clone(),
    }))
}

/// The newest recent turn with a request that the present one only adds to. Taken only where a single session can be
/// meant.
pub(crate) fn of_shorter(
    lookup: &Lookup<'_>,
    asker: &Asker<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Option<TurnHit>, SessionError> {
    let mut hits = recent(lookup, digest, now_ms, window)?;
    hits.retain(|hit| asker.stranger_to(hit).is_none());
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
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Vec<TurnHit>, SessionError> {
    let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    let since = now_ms
        .saturating_sub(window_ms)
        .saturating_sub(LONGEST_REPLY_MS);
    let mut hits = lookup.requests(digest, since)?;
    hits.retain(|hit| {
        now_ms.saturating_sub(
            hit.completed_ms
                .unwrap_or(hit.received_ms)
                .max(hit.received_ms),
        ) <= window_ms
    });
    Ok(hits)
}
