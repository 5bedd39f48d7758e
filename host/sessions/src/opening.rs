//! Requests in which no reply of ours was found: a conversation that begins, the same opening again, or a client that
//! dropped or changed what we said.

use clawhost_journal::TurnHit;
use serde_json::json;

use crate::deciding::{Case, Decision, note};
use crate::error::SessionError;
use crate::likeness::text_likeness;
use crate::matching::Search;
use crate::normalise::{Plain, Role};
use crate::retry;
use crate::user_side::Sided;

impl Case<'_> {
    /// Decides such a request.
    pub(crate) fn opening(&self, search: &Search) -> Result<Decision, SessionError> {
        let digest = self.digest(None);
        let window = self.options.retry_window;
        let repeated =
            retry::of_opening(&self.lookup, &self.asker(), &digest, self.now_ms, window)?;
        if let Some(repeated) = repeated {
            return Ok(self.repeating(repeated, digest, search));
        }
        let unclear = match self.by_user_side()? {
            Sided::Found(found) => return self.continuing(*found, search),
            Sided::Unclear(why) => Some(why),
            Sided::Unknown => None,
        };
        if let Some(turn) = self.without_our_reply()? {
            let reason = format!(
                "asks what turn {} asked and more, without our reply to it",
                turn.id
            );
            let mut decision = self.settled("fork", &reason, digest, search);
            decision.origin = "content";
            decision.session = Some(turn.session);
            return Ok(decision);
        }
        if let Some(turn) = self.with_our_reply_changed()? {
            let reason = format!(
                "goes on from turn {} with a reply that is not as it was given, cut off or edited: what follows says nothing of ours",
                turn.id
            );
            let mut decision = self.settled("continue", &reason, digest, search);
            decision.origin = "content";
            decision.session = Some(turn.session);
            decision.parent = Some(turn.id);
            note(&mut decision.matched, "parent", json!(turn.id));
            return Ok(decision);
        }
        let replies = self
            .plain
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
        let mut decision = self.settled("new", reason, digest, search);
        if let Some(why) = unclear {
            note(&mut decision.matched, "doubt", why.into());
        }
        Ok(decision)
    }

    /// The turn to whose request this one only adds a message of the user.
    fn without_our_reply(&self) -> Result<Option<TurnHit>, SessionError> {
        match self.plain.split_last() {
            Some((last, rest)) if last.role == Role::User => self.same_request(rest),
            _ => Ok(None),
        }
    }

    /// The turn whose request stands in front of the last reply of this one, if what it answered is like that reply.
    fn with_our_reply_changed(&self) -> Result<Option<TurnHit>, SessionError> {
        let Some(place) = self
            .plain
            .iter()
            .rposition(|message| message.role == Role::Assistant)
        else {
            return Ok(None);
        };
        let Some(turn) = self.same_request(self.plain.get(..place).unwrap_or_default())? else {
            return Ok(None);
        };
        let given = self.lookup.turn(turn.id)?.and_then(|turn| turn.completion);
        let like = given
            .zip(self.plain.get(place))
            .is_some_and(|(given, shown)| {
                let given = Plain::of(&given.reply).text;
                given.starts_with(&shown.text) && !shown.text.is_empty()
                    || text_likeness(&given, &shown.text) > 0.0
            });
        Ok(like.then_some(turn))
    }

    /// The newest recent turn with exactly this request, where only one session can be meant.
    fn same_request(&self, messages: &[Plain]) -> Result<Option<TurnHit>, SessionError> {
        if messages.iter().all(|message| message.role == Role::System) {
            return Ok(None);
        }
        let digest = self.digest_of(messages);
        retry::of_shorter(
            &self.lookup,
            &self.asker(),
            &digest,
            self.now_ms,
            self.options.retry_window,
        )
    }
}
