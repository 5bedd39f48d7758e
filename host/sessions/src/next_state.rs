//! Extraction of the next state: the messages after our reply.

use crate::ephemeral::is_ephemeral_message;
use crate::normalize::NormalizedMessage;
use clawhost_chat::{Message, Role};

/// The messages of a request that follow our reply.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FollowingMessages {
    /// Positions in the request, in order.
    pub(crate) positions: Vec<usize>,
    /// Position of a trailing message that the client replaces in each request.
    pub(crate) ephemeral: Option<usize>,
    /// The conversation already continued with a reply that is not ours.
    pub(crate) unknown_reply: bool,
}

impl FollowingMessages {
    /// The messages after the reply at `place`, up to the next assistant message. A trailing ephemeral message (detected
    /// with `previous`, the request that our reply answered) is left out if another message remains.
    pub(crate) fn after_reply(
        place: usize,
        request: &[NormalizedMessage],
        previous: &[NormalizedMessage],
    ) -> Self {
        let behind = request.iter().enumerate().skip(place + 1);
        let end = behind
            .clone()
            .find(|(_, message)| message.role == Role::Assistant)
            .map(|(at, _)| at);
        let mut following = Self {
            positions: (place + 1..end.unwrap_or(request.len())).collect(),
            ephemeral: None,
            unknown_reply: end.is_some(),
        };
        if end.is_none() {
            following.drop_ephemeral(request, &request[..place], previous);
        }
        following
    }

    /// As [`Self::after_reply`] for a request without our reply: the messages after `place`, the position of the last
    /// message of the turn's prompt.
    pub(crate) fn after_prompt(
        place: usize,
        request: &[NormalizedMessage],
        previous: &[NormalizedMessage],
    ) -> Self {
        let mut following = Self::after_reply(place, request, &[]);
        if !following.unknown_reply {
            following.drop_ephemeral(request, &request[..=place], previous);
        }
        following
    }

    /// As [`Self::after_reply`] for a named session whose request does not contain our reply: the messages after the
    /// last assistant message, or, if the client sends none, the messages that the previous request did not have.
    pub(crate) fn after_last_reply(
        request: &[NormalizedMessage],
        previous: &[NormalizedMessage],
    ) -> Self {
        if let Some(place) = request
            .iter()
            .rposition(|message| message.role == Role::Assistant)
        {
            return Self::after_reply(place, request, previous);
        }
        let known = |role: Role| role != Role::System;
        let new: Vec<usize> = request
            .iter()
            .enumerate()
            .filter(|(_, message)| known(message.role))
            .map(|(at, _)| at)
            .collect();
        let old: Vec<&NormalizedMessage> = previous
            .iter()
            .filter(|message| known(message.role))
            .collect();
        let resent = new
            .iter()
            .zip(&old)
            .all(|(at, old)| request.get(*at).is_some_and(|new| new.digest == old.digest));
        let skip = if resent && new.len() >= old.len() {
            old.len()
        } else {
            0
        };
        Self {
            positions: new.into_iter().skip(skip).collect(),
            ..Self::default()
        }
    }

    fn drop_ephemeral(
        &mut self,
        request: &[NormalizedMessage],
        history: &[NormalizedMessage],
        previous: &[NormalizedMessage],
    ) {
        let Some((last, rest)) = self.positions.split_last() else {
            return;
        };
        let something_left = rest.iter().any(|at| {
            request
                .get(*at)
                .is_some_and(|message| message.role != Role::System)
        });
        if something_left
            && request
                .get(*last)
                .is_some_and(|last| is_ephemeral_message(previous, history, last))
        {
            self.ephemeral = Some(*last);
            self.positions.pop();
        }
    }

    /// Whether at most system messages follow.
    pub(crate) fn is_empty(&self, request: &[NormalizedMessage]) -> bool {
        !self
            .normalized(request)
            .any(|message| message.role != Role::System)
    }

    /// The messages, normalized.
    pub(crate) fn normalized<'a>(
        &'a self,
        request: &'a [NormalizedMessage],
    ) -> impl Iterator<Item = &'a NormalizedMessage> {
        self.positions.iter().filter_map(|at| request.get(*at))
    }

    /// The messages, as sent.
    pub(crate) fn messages(&self, request: &[Message]) -> Vec<Message> {
        self.positions
            .iter()
            .filter_map(|at| request.get(*at))
            .cloned()
            .collect()
    }
}
