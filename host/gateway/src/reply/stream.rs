//! Streaming responses: a reply as server-sent events. Text is sent when it is final, token by token.
//!
//! The stream owns the choices. When the client disconnects, the server drops the stream with its choices, and each
//! choice cancels its generation and records the partial reply. The last event of a choice is sent only after its turn is
//! recorded as complete.
//!
//! A client that reads slowly delays the events but not the engine: generated text waits in memory, bounded by
//! `max_tokens`, and the concurrency slot is released when generation has finished. A client that reads nothing for
//! [`write_timeout`](crate::GatewayOptions::write_timeout) is disconnected.

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, unfold};

use super::choice::{AbortReason, Progress};
use super::{Choice, Dialect, EventQueue, Reply, StreamWriter, Usage};
use crate::admission::SlotGuard;
use crate::error::ApiError;
use crate::gateway::Shared;

type PolledChoice = (Choice, Result<Progress, ApiError>);

/// The state of a stream between two events.
struct ReplyStream<W> {
    shared: Arc<Shared>,
    writer: W,
    abort_reason: Arc<AbortReason>,
    running: FuturesUnordered<BoxFuture<'static, PolledChoice>>,
    out: EventQueue,
    usage: Usage,
    finished: bool,
    _slot: SlotGuard,
}

/// Returns the stream of this reply.
pub(super) fn respond<D: Dialect>(shared: &Arc<Shared>, reply: Reply, dialect: D) -> Response {
    let Reply {
        context,
        choices,
        abort_reason,
        slot,
    } = reply;
    let headers = context.headers();
    let generations: Vec<_> = choices.iter().map(Choice::generation_finished).collect();
    let slot = slot.hold_until(async move {
        for choice in generations {
            choice.await;
        }
    });
    let mut stream_state = ReplyStream {
        shared: shared.clone(),
        writer: dialect.stream_writer(context),
        abort_reason,
        running: choices.into_iter().map(poll_choice).collect(),
        out: EventQueue::default(),
        usage: Usage::default(),
        finished: false,
        _slot: slot,
    };
    stream_state.writer.start(&mut stream_state.out);
    let stream = unfold(stream_state, |mut stream_state| async move {
        let event = stream_state.next().await?;
        Some((Ok::<_, Infallible>(event), stream_state))
    });
    let mut response = Sse::new(stream)
        .keep_alive(D::keep_alive().interval(shared.options.keep_alive))
        .into_response();
    response.headers_mut().extend(headers);
    // Disables response buffering in proxies such as nginx.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

fn poll_choice(mut choice: Choice) -> BoxFuture<'static, PolledChoice> {
    Box::pin(async move {
        let progress = choice.next().await;
        (choice, progress)
    })
}

impl<W: StreamWriter> ReplyStream<W> {
    /// The next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.out.pop() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            match self.running.next().await {
                Some((choice, progress)) => self.handle_progress(choice, progress),
                None => {
                    self.shared
                        .metrics
                        .add_prompt_tokens(self.usage.prompt, self.usage.cached);
                    self.writer.finish(&mut self.out, &self.usage);
                    self.finished = true;
                }
            }
        }
    }

    fn handle_progress(&mut self, mut choice: Choice, progress: Result<Progress, ApiError>) {
        match progress {
            Ok(Progress::Deltas(deltas)) => {
                self.writer.write_deltas(&mut self.out, &mut choice, deltas);
                self.running.push(poll_choice(choice));
            }
            Ok(Progress::Finished(deltas)) => {
                if !deltas.is_empty() {
                    self.writer.write_deltas(&mut self.out, &mut choice, deltas);
                }
                self.usage.add(&choice);
                self.writer.finish_choice(&mut self.out, &mut choice);
            }
            Err(error) => {
                self.abort_reason
                    .set("another choice of the same reply failed");
                self.running.clear();
                self.writer.fail(&mut self.out, &error);
                self.finished = true;
            }
        }
    }
}
