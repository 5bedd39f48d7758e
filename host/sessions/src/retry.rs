//! Retry detection: the same request again, because the client lost the response or the user wants another one. Its reply
//! joins the group of the first, and it is no feedback on the first.
//!
//! A request that contains a reply of ours belongs to one conversation, so an identical request is a retry. For an
//! *opening* request that is not enough: many users start with "hi", and may share one API key. It counts as a retry only
//! with the same client request id or the same trace, or if the first reply was cut off and no other session began with
//! this request. Otherwise a new session is opened: mixing two users' conversations is worse than missing a retry.

use clawhost_journal::{SessionId, TurnId, TurnState, TurnSummary};

use crate::SessionError;
use crate::request_matcher::RequestMatcher;

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

impl RequestMatcher<'_> {
    /// An earlier identical request that continues the same reply.
    pub(crate) fn retry_of_continuation(
        &self,
        digest: &str,
        parent: TurnId,
    ) -> Result<Option<RetryMatch>, SessionError> {
        let key = self.caller().key;
        let mut same = self.lookup.turns_with_request(digest, key, 0)?.into_iter();
        let same = same.find(|hit| hit.parent == Some(parent));
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
        &self,
        digest: &str,
        session: &SessionId,
    ) -> Result<Option<RetryMatch>, SessionError> {
        let mut hits = self.recent(digest)?.into_iter();
        let same = hits.find(|hit| hit.session == *session);
        Ok(same.map(|turn| RetryMatch {
            why: format!("the same request as turn {} of the named session", turn.id),
            turn,
        }))
    }

    /// An earlier identical opening request with evidence that it is of the same conversation.
    pub(crate) fn retry_of_opening(
        &self,
        digest: &str,
    ) -> Result<Option<RetryMatch>, SessionError> {
        let caller = self.caller();
        let mut hits = self.recent(digest)?;
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
        &self,
        digest: &str,
    ) -> Result<Option<TurnSummary>, SessionError> {
        let caller = self.caller();
        let mut hits = self.recent(digest)?;
        hits.retain(|hit| caller.exclusion_reason(hit).is_none());
        let newest = hits.first();
        let alone = |newest: &&TurnSummary| hits.iter().all(|hit| hit.session == newest.session);
        Ok(newest.filter(alone).cloned())
    }

    /// Turns of the key with this request within the retry window, newest first.
    fn recent(&self, digest: &str) -> Result<Vec<TurnSummary>, SessionError> {
        let window_ms = i64::try_from(self.options.retry_window.as_millis()).unwrap_or(i64::MAX);
        let oldest = self.now_ms.saturating_sub(window_ms);
        let since = oldest.saturating_sub(LONGEST_REPLY_MS);
        let key = self.caller().key;
        let mut hits = self.lookup.turns_with_request(digest, key, since)?;
        hits.retain(|hit| {
            let ended = hit.completed_ms.unwrap_or(hit.received_ms);
            self.now_ms.saturating_sub(ended.max(hit.received_ms)) <= window_ms
        });
        Ok(hits)
    }
}
