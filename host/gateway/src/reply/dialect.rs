//! What tells the dialects apart: how a request is read, and how an answer is written.
//!
//! A dialect says nothing about what is served, recorded or cancelled; that is the same for all.

use std::collections::VecDeque;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive};
use serde_json::Value;

use super::{Ask, Choice, Delta, Known, Usage};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::gateway::Shared;

/// A request that nobody has looked into yet.
pub(crate) struct Arriving<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) caller: &'a Caller,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Value,
}

/// One way to ask for a reply and to be given it.
pub(crate) trait Dialect: Sized + Send + 'static {
    /// What the ids of its replies begin with.
    const REPLY_ID: &'static str;
    /// What the ids of tool calls begin with.
    const CALL_ID: &'static str;
    /// The field that holds the conversation, as a refusal of all of it names it.
    const PROMPT: &'static str;
    /// The field that says what form the text must have.
    const FORMAT: &'static str;
    /// What writes its streams.
    type Events: Events;

    /// Reads a request: what it asks for, and what only this dialect needs to know to answer. Runs where it may
    /// block.
    fn read(request: &Arriving<'_>) -> Result<(Ask, Self), ApiError>;

    /// Whether the client wants a stream.
    fn streams(&self) -> bool;

    /// What keeps a silent stream open. Default: a comment.
    fn keep_alive() -> KeepAlive {
        KeepAlive::new()
    }

    /// The body of a whole answer; the choices are in order, complete and recorded.
    fn whole(self, known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value;

    /// What writes the stream of this reply.
    fn events(self, known: Known) -> Self::Events;
}

/// A choice that is complete and recorded, with all changes that its message went through.
pub(crate) struct Ended {
    pub(crate) choice: Choice,
    pub(crate) deltas: Vec<Delta>,
}

/// Writes a reply as events while it grows. Whatever is put out leaves at once and in order.
pub(crate) trait Events: Send + 'static {
    /// Before the first token.
    fn begin(&mut self, out: &mut Outbox);
    /// The message of a choice grew.
    fn grow(&mut self, out: &mut Outbox, choice: &mut Choice, deltas: Vec<Delta>);
    /// A choice is complete and recorded.
    fn end(&mut self, out: &mut Outbox, choice: &mut Choice);
    /// All choices are complete; nothing comes after this.
    fn finish(&mut self, out: &mut Outbox, usage: &Usage);
    /// The reply broke off; the status line has left long ago. Nothing comes after this.
    fn fail(&mut self, out: &mut Outbox, error: &ApiError);
}

/// Events that are written and not sent yet.
#[derive(Default)]
pub(crate) struct Outbox(VecDeque<Event>);

impl Outbox {
    /// Puts out an event without a name.
    pub(crate) fn data(&mut self, data: &Value) {
        self.text(&data.to_string());
    }

    /// Puts out an event without a name whose data is no JSON.
    pub(crate) fn text(&mut self, data: &str) {
        self.0.push_back(Event::default().data(data));
    }

    /// Puts out an event with a name.
    pub(crate) fn named(&mut self, name: &str, data: &Value) {
        self.named_text(name, &data.to_string());
    }

    /// The same with data that is written already.
    pub(crate) fn named_text(&mut self, name: &str, data: &str) {
        self.0.push_back(Event::default().event(name).data(data));
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        self.0.pop_front()
    }
}
