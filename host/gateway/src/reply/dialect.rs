//! The trait that each API dialect (OpenAI chat, Anthropic messages, OpenAI Responses) implements: parsing a request and
//! writing the response.
//!
//! Serving, recording and cancelling do not depend on the dialect.

use std::collections::VecDeque;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive};
use clawhost_engine::LoadedVersion;
use serde_json::Value;

use super::{Choice, Delta, InferenceRequest, ReplyContext, Usage};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::shared::Shared;

/// A request that is not parsed yet.
pub(crate) struct RawRequest<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) caller: &'a Caller,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Value,
}

impl RawRequest<'_> {
    /// The version that the caller gets under a model name, and the name for the response.
    pub(crate) fn resolve_model(
        &self,
        name: Option<&str>,
    ) -> Result<(LoadedVersion, String), ApiError> {
        let owner = self.shared.adapter_owner(self.caller, None)?;
        self.shared
            .resolve_version(self.caller, owner.as_ref(), name)
    }
}

/// An API dialect.
pub(crate) trait Dialect: Sized + Send + 'static {
    /// Prefix of reply ids.
    const REPLY_ID_PREFIX: &'static str;
    /// Prefix of tool call ids.
    const CALL_ID_PREFIX: &'static str;
    /// Name of the conversation field, for errors about the whole prompt.
    const PROMPT_FIELD: &'static str;
    /// Name of the response format field, for errors about it.
    const FORMAT_FIELD: &'static str;
    /// Writes streaming responses.
    type Writer: StreamWriter;

    /// Parses a request into the common request and the settings that only this dialect needs. May block.
    fn parse(request: &RawRequest<'_>) -> Result<(InferenceRequest, Self), ApiError>;

    /// Whether the client requested a stream.
    fn is_streaming(&self) -> bool;

    /// The keep-alive event of idle streams. Default: a comment.
    fn keep_alive() -> KeepAlive {
        KeepAlive::new()
    }

    /// The body of a non-streaming response; the choices are in order, complete and recorded.
    fn response_body(
        self,
        context: &ReplyContext,
        finished: Vec<FinishedChoice>,
        usage: &Usage,
    ) -> Value;

    /// The writer for the stream of this reply.
    fn stream_writer(self, context: ReplyContext) -> Self::Writer;
}

/// A complete and recorded choice with all increments of its message.
pub(crate) struct FinishedChoice {
    pub(crate) choice: Choice,
    pub(crate) deltas: Vec<Delta>,
}

/// Writes a reply as server-sent events. Queued events are sent at once and in order.
pub(crate) trait StreamWriter: Send + 'static {
    /// Called before the first token.
    fn start(&mut self, out: &mut EventQueue);
    /// Writes new increments of a choice.
    fn write_deltas(&mut self, out: &mut EventQueue, choice: &mut Choice, deltas: Vec<Delta>);
    /// Called when a choice is complete and recorded.
    fn finish_choice(&mut self, out: &mut EventQueue, choice: &mut Choice);
    /// Called when all choices are complete; ends the stream.
    fn finish(&mut self, out: &mut EventQueue, usage: &Usage);
    /// Reports an error after the status line was sent; ends the stream.
    fn fail(&mut self, out: &mut EventQueue, error: &ApiError);
}

/// Events that are not sent yet.
#[derive(Default)]
pub(crate) struct EventQueue(VecDeque<Event>);

impl EventQueue {
    /// Queues an event without a name.
    pub(crate) fn push_json(&mut self, data: &Value) {
        self.push_text(&data.to_string());
    }

    /// Queues an event without a name whose data is not JSON.
    pub(crate) fn push_text(&mut self, data: &str) {
        self.0.push_back(Event::default().data(data));
    }

    /// Queues a named event.
    pub(crate) fn push_named(&mut self, name: &str, data: &Value) {
        self.push_named_text(name, &data.to_string());
    }

    /// Queues a named event with serialized data.
    pub(crate) fn push_named_text(&mut self, name: &str, data: &str) {
        self.0.push_back(Event::default().event(name).data(data));
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.0.pop_front()
    }
}
