//! Streaming responses: a reply as server-sent events. Text is sent when it is final, token by token.
//!
//! The stream owns the choices. When the client disconnects, the server drops the stream with its choices, and each
//! choice cancels its generation and records the partial reply. The last event of a choice is sent only after its turn is
//! recorded as complete.
//!
//! A client that reads slowly delays the events but not the engine: generated text waits in memory, bounded by
//! `max_tokens`, and the concurrency slot is released when generation has finished. A client that reads nothing for
//! [`write_timeout`](clawhost_config::ServerConfig::write_timeout) is disconnected.
//!
//! A panic ends the stream with an error event, as any other failure after the status line; its turns are aborted.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, unfold};
use futures_util::{FutureExt, Stream, StreamExt};

use super::abort_reason::AbortReason;
use super::choice::Progress;
use super::context::Reply;
use super::{Choice, Dialect, EventQueue, StreamWriter, Usage};
use crate::admission::SlotGuard;
use crate::error::ApiError;
use crate::shared::Shared;

type PolledChoice = (Choice, Result<Progress, ApiError>);

/// The state of a stream between two events.
struct ReplyStream<W> {
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
    let slot = slot.hold_until(join_all(choices.iter().map(Choice::generation_finished)));
    let mut stream_state = ReplyStream {
        writer: dialect.stream_writer(context),
        abort_reason,
        running: choices.into_iter().map(poll_choice).collect(),
        out: EventQueue::default(),
        usage: Usage::default(),
        finished: false,
        _slot: slot,
    };
    stream_state.writer.start(&mut stream_state.out);
    let events = unfold(stream_state, |mut stream_state| async move {
        let event = stream_state.next().await?;
        Some((event, stream_state))
    });
    sse_response(events, shared, D::keep_alive(), headers)
}

/// A response of server-sent events.
pub(crate) fn sse_response(
    events: impl Stream<Item = Event> + Send + 'static,
    shared: &Shared,
    keep_alive: KeepAlive,
    headers: HeaderMap,
) -> Response {
    let mut response = Sse::new(events.map(Ok::<_, Infallible>))
        .keep_alive(keep_alive.interval(shared.options.keep_alive))
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
            // Nothing is used after a panic but the writer, and that only to end the stream.
            if let Err(panic) = AssertUnwindSafe(self.advance()).catch_unwind().await {
                self.fail_after_panic(&*panic);
            }
        }
    }

    /// Waits for progress of any choice, and queues its events.
    async fn advance(&mut self) {
        match self.running.next().await {
            Some((choice, progress)) => self.handle_progress(choice, progress),
            None => {
                self.writer.finish(&mut self.out, &self.usage);
                self.finished = true;
            }
        }
    }

    fn fail_after_panic(&mut self, panic: &(dyn Any + Send)) {
        let error = ApiError::from_panic(panic);
        self.finished = true;
        self.abort_reason.set("the server panicked");
        let writer = AssertUnwindSafe(|| {
            self.running.clear();
            self.writer.fail(&mut self.out, &error);
        });
        if catch_unwind(writer).is_err() {
            tracing::error!("the error event of a stream could not be written");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Slot;
    use crate::connection::Peer;
    use crate::reply::Delta;

    /// Writes one event per error, or panics instead.
    struct Writer {
        panics: bool,
    }

    impl StreamWriter for Writer {
        fn start(&mut self, _: &mut EventQueue) {}
        fn write_deltas(&mut self, _: &mut EventQueue, _: &mut Choice, _: Vec<Delta>) {}
        fn finish_choice(&mut self, _: &mut EventQueue, _: &mut Choice) {}
        fn finish(&mut self, out: &mut EventQueue, _: &Usage) {
            out.push_text("finished");
        }
        fn fail(&mut self, out: &mut EventQueue, _: &ApiError) {
            assert!(!self.panics, "again");
            out.push_text("failed");
        }
    }

    #[tokio::test]
    async fn a_panic_ends_the_stream_with_an_error_event() {
        for (panics, events) in [(false, 1), (true, 0)] {
            let panicking: BoxFuture<'static, PolledChoice> = Box::pin(async { panic!("a bug") });
            let mut stream = ReplyStream {
                writer: Writer { panics },
                abort_reason: Arc::new(AbortReason::new(Peer::default())),
                running: FuturesUnordered::from_iter([panicking]),
                out: EventQueue::default(),
                usage: Usage::default(),
                finished: false,
                _slot: Slot::default().hold_until(std::future::ready(())),
            };
            let mut sent = Vec::new();
            while let Some(event) = stream.next().await {
                sent.push(format!("{event:?}"));
            }
            assert_eq!(sent.len(), events, "{sent:?}");
            assert!(
                sent.iter().all(|event| event.contains("failed")),
                "{sent:?}"
            );
        }
    }
}
