//! Requests that contain no reply of ours: a new conversation, a retry of an opening request, or a client that dropped or
//! changed our reply.

use clawhost_chat::Role;
use clawhost_journal::{MatchDecision, TurnSummary};

use crate::decision::Decision;
use crate::error::SessionError;
use crate::matching::Search;
use crate::normalize::NormalizedMessage;
use crate::request_matcher::RequestMatcher;
use crate::similarity::text_similarity;
use crate::user_messages::UserMatch;

impl RequestMatcher<'_> {
    /// Decides a request without a matching reply.
    pub(crate) fn decide_opening(&self, search: &Search) -> Result<Decision, SessionError> {
        let digest = self.digest(None);
        if let Some(repeated) = self.retry_of_opening(&digest)? {
            return Ok(self.retry_decision(repeated, digest, search));
        }
        let unclear = match self.match_user_messages()? {
            UserMatch::Found(found) => return self.decide_continuation(*found, search),
            UserMatch::Ambiguous(why) => Some(why),
            UserMatch::NotFound => None,
        };
        if let Some(turn) = self.without_our_reply()? {
            let reason = format!(
                "asks what turn {} asked and more, without our reply to it",
                turn.id
            );
            let mut decision = self.new_decision(MatchDecision::Fork, &reason, digest, search);
            decision.origin = "content";
            decision.session = Some(turn.session);
            return Ok(decision);
        }
        if let Some(turn) = self.with_our_reply_changed()? {
            let reason = format!(
                "goes on from turn {} with a reply that is not as it was given, cut off or edited: what follows says nothing of ours",
                turn.id
            );
            let mut decision = self.new_decision(MatchDecision::Continue, &reason, digest, search);
            decision.origin = "content";
            decision.session = Some(turn.session);
            decision.parent = Some(turn.id);
            return Ok(decision);
        }
        let replies = self
            .normalized
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .count();
        let reason = match (replies, search.considered) {
            (0, _) => "no reply is in the request: a conversation begins",
            (_, 0) => {
                "no reply in the request is ours: another model's conversation, or one from before this journal"
            }
            _ => "replies like these are ours, but the history in front of them is another one",
        };
        let mut decision = self.new_decision(MatchDecision::New, reason, digest, search);
        decision.matched.doubt = unclear;
        Ok(decision)
    }

    /// The turn whose request this one extends by one user message.
    fn without_our_reply(&self) -> Result<Option<TurnSummary>, SessionError> {
        match self.normalized.split_last() {
            Some((last, rest)) if last.role == Role::User => self.same_request(rest),
            _ => Ok(None),
        }
    }

    /// The turn whose request is the history before the last assistant message, if its reply is similar to that message.
    fn with_our_reply_changed(&self) -> Result<Option<TurnSummary>, SessionError> {
        let Some(place) = self
            .normalized
            .iter()
            .rposition(|message| message.role == Role::Assistant)
        else {
            return Ok(None);
        };
        let Some(turn) = self.same_request(&self.normalized[..place])? else {
            return Ok(None);
        };
        let given = self.lookup.turn(turn.id)?.and_then(|turn| turn.completion);
        let like = given
            .zip(self.normalized.get(place))
            .is_some_and(|(given, shown)| {
                let given = NormalizedMessage::of_reply(&given.reply).text;
                given.starts_with(&shown.text) && !shown.text.is_empty()
                    || text_similarity(&given, &shown.text) > 0.0
            });
        Ok(like.then_some(turn))
    }

    /// The newest recent turn with exactly this request, if all such turns are of one session.
    fn same_request(
        &self,
        messages: &[NormalizedMessage],
    ) -> Result<Option<TurnSummary>, SessionError> {
        if messages.iter().all(|message| message.role == Role::System) {
            return Ok(None);
        }
        self.find_extended_request(&self.digest_of(messages))
    }
}
