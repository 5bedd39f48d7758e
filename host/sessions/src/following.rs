//! The next state: what came after our reply, and nothing else.

use serde_json::Value;

use crate::ephemeral::is_replaced_each_time;
use crate::normalise::{Plain, Role};

/// Messages that follow a reply of ours in a request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Following {
    /// Positions in the request, in order.
    pub(crate) places: Vec<usize>,
    /// Position of a trailing message that the client replaces each time.
    pub(crate) ephemeral: Option<usize>,
    /// The conversation already went on from there with a reply that is not known.
    pub(crate) unknown_reply: bool,
}

impl Following {
    /// Messages after the reply at `place`, up to the next reply of anybody, less a trailing message that the client
    /// (judged by `previous`, the request that brought our reply) replaces each time, if something else is left.
    pub(crate) fn after(place: usize, request: &[Plain], previous: &[Plain]) -> Self {
        let behind = request.iter().enumerate().skip(place + 1);
        let end = behind
            .clone()
            .find(|(_, message)| message.role == Role::Assistant)
            .map(|(at, _)| at);
        let mut following = Self {
            places: (place + 1..end.unwrap_or(request.len())).collect(),
            ephemeral: None,
            unknown_reply: end.is_some(),
        };
        if end.is_none() {
            following.drop_ephemeral(request, request.get(..place).unwrap_or_default(), previous);
        }
        following
    }

    /// The same for a request that leaves our reply out: what follows the message at `place`, the last that the turn was
    /// asked.
    pub(crate) fn after_asked(place: usize, request: &[Plain], previous: &[Plain]) -> Self {
        let mut following = Self::after(place, request, &[]);
        if !following.unknown_reply {
            following.drop_ephemeral(request, request.get(..=place).unwrap_or_default(), previous);
        }
        following
    }

    /// The same for a named session in whose request our reply was not found: what follows the last reply of anybody,
    /// or, where the client sends no replies, what the turn before had not been sent yet.
    pub(crate) fn after_last(request: &[Plain], previous: &[Plain]) -> Self {
        if let Some(place) = request
            .iter()
            .rposition(|message| message.role == Role::Assistant)
        {
            return Self::after(place, request, previous);
        }
        let known = |role: Role| role != Role::System;
        let new: Vec<usize> = request
            .iter()
            .enumerate()
            .filter(|(_, message)| known(message.role))
            .map(|(at, _)| at)
            .collect();
        let old: Vec<&Plain> = previous
            .iter()
            .filter(|message| known(message.role))
            .collect();
        let resent = new
            .iter()
            .zip(&old)
            .all(|(at, old)| request.get(*at).is_some_and(|new| new.mark == old.mark));
        let skip = if resent && new.len() >= old.len() {
            old.len()
        } else {
            0
        };
        Self {
            places: new.into_iter().skip(skip).collect(),
            ..Self::default()
        }
    }

    fn drop_ephemeral(&mut self, request: &[Plain], history: &[Plain], previous: &[Plain]) {
        let Some((last, rest)) = self.places.split_last() else {
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
                .is_some_and(|last| is_replaced_each_time(previous, history, last))
        {
            self.ephemeral = Some(*last);
            self.places.pop();
        }
    }

    /// Nobody said anything: at most instructions follow.
    pub(crate) fn is_empty(&self, request: &[Plain]) -> bool {
        !self
            .plain(request)
            .any(|message| message.role != Role::System)
    }

    /// The messages, reduced.
    pub(crate) fn plain<'a>(&'a self, request: &'a [Plain]) -> impl Iterator<Item = &'a Plain> {
        self.places.iter().filter_map(|at| request.get(*at))
    }

    /// The messages, as sent.
    pub(crate) fn messages(&self, request: &[Value]) -> Value {
        self.places
            .iter()
            .filter_map(|at| request.get(*at))
            .cloned()
            .collect()
    }
}
