//! The same request again: a client that lost the answer or a person who wants another one. Its reply becomes a sibling
//! of the first, and it says nothing about the first.
//!
//! A request that contains a reply of ours is at home in one conversation, so the same again is a retry. An *opening* is
//! not: a thousand people begin with "hi", and one key may stand for all of them. There it takes proof that it is the same
//! request: the client's own id of it, its trace, or a first reply that was cut off while nobody else began like this.
//! Without proof another session is opened: mixing two people's conversations is the worse mistake.

use std::time::Duration;

use clawhost_journal::{SessionId, TurnHit, TurnId, TurnState};

use crate::SessionError;
use crate::lookup::{Asker, Lookup};

/// How long a reply may take. A retry is looked for that much longer than the window, which counts from its end.
const LONGEST_REPLY_MS: i64 = 30 * 60 * 1000;

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
    asker: &Asker<'_>,
    digest: &str,
    parent: TurnId,
) -> Result<Option<Repeated>, SessionError> {
    let same = lookup
        .requests(digest, asker.key, 0)?
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
    asker: &Asker<'_>,
    digest: &str,
    session: &SessionId,
    now_ms: i64,
    window: Duration,
) -> Result<Option<Repeated>, SessionError> {
    let hits = recent(lookup, asker, digest, now_ms, window)?;
    Ok(hits
        .into_iter()
        .find(|hit| hit.session == *session)
        .map(|turn| Repeated {
            why: format!("the same request as turn {} of the named session", turn.id),
            turn,
        }))
}

/// An earlier identical opening that is provably of the same conversation.
pub(crate) fn of_opening(
    lookup: &Lookup<'_>,
    asker: &Asker<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Option<Repeated>, SessionError> {
    let mut hits = recent(lookup, asker, digest, now_ms, window)?;
    hits.retain(|hit| hit.parent.is_none() && asker.stranger_to(hit).is_none());
    let by_id = hits.iter().find(|hit| asker.same_request(hit));
    let by_trace = || hits.iter().find(|hit| asker.same_trace(hit));
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
    Ok(proved.map(|(turn, why)| Repeated {
        why: format!("the same request as turn {}, {why}", turn.id),
        turn: turn.clone(),
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
    let mut hits = recent(lookup, asker, digest, now_ms, window)?;
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
    asker: &Asker<'_>,
    digest: &str,
    now_ms: i64,
    window: Duration,
) -> Result<Vec<TurnHit>, SessionError> {
    let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    let since = now_ms
        .saturating_sub(window_ms)
        .saturating_sub(LONGEST_REPLY_MS);
    let mut hits = lookup.requests(digest, asker.key, since)?;
    hits.retain(|hit| {
        now_ms.saturating_sub(
            hit.completed_ms
                .unwrap_or(hit.received_ms)
                .max(hit.received_ms),
        ) <= window_ms
    });
    Ok(hits)
}
