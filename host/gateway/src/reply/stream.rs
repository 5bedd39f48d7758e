//! A reply as server-sent events: each piece of text leaves when the token that made it final is drawn.
//!
//! The events own the choices. When the client goes away the server drops the events, the choices with
//! them, and each choice cancels its generation and records what was said. A choice's last event leaves
//! only after its turn was recorded as complete.
//!
//! A client that reads slowly holds the events up, and not the engine: what is generated waits in memory, within the
//! bounds of `max_tokens`, and the reply leaves its slot to others as soon as all of it is generated. A client that
//! takes nothing for [`write_timeout`](crate::GatewayOptions::write_timeout) counts as gone.

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, unfold};

use super::choice::{Closing, Progress};
use super::{Choice, Dialect, Events, Outbox, Reply, Usage};
use crate::admission::HeldSlot;
use crate::error::ApiError;
use crate::gateway::Shared;

type Step = (Choice, Result<Progress, ApiError>);

/// The state between two events.
struct Writing<E> {
    shared: Arc<Shared>,
    events: E,
    closing: Arc<Closing>,
    running: FuturesUnordered<BoxFuture<'static, Step>>,
    out: Outbox,
    usage: Usage,
    finished: bool,
    _slot: HeldSlot,
}

/// Answers with the events of this reply.
pub(super) fn respond<D: Dialect>(shared: &Arc<Shared>, reply: Reply, dialect: D) -> Response {
    let Reply {
        known,
        choices,
        closing,
        slot,
    } = reply;
    let headers = known.headers();
    let generated: Vec<_> = choices.iter().map(Choice::generated).collect();
    let slot = slot.hold_until(async move {
        for choice in generated {
            choice.await;
        }
    });
    let mut writing = Writing {
        shared: shared.clone(),
        events: dialect.events(known),
        closing,
        running: choices.into_iter().map(step).collect(),
        out: Outbox::default(),
        usage: Usage::default(),
        finished: false,
        _slot: slot,
    };
    writing.events.begin(&mut writing.out);
    let stream = unfold(writing, |mut writing| async move {
        let event = writing.next().await?;
        Some((Ok::<_, Infallible>(event), writing))
    });
    let mut response = Sse::new(stream)
        .keep_alive(D::keep_alive().interval(shared.options.keep_alive))
        .into_response();
    response.headers_mut().extend(headers);
    // Proxies that collect a response before they pass it on would undo the streaming.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

fn step(mut choice: Choice) -> BoxFuture<'static, Step> {
    Box::pin(async move {
        let progress = choice.next().await;
        (choice, progress)
    })
}

impl<E: Events> Writing<E> {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.out.next() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            match self.running.next().await {
                Some((choice, progress)) => self.take(choice, progress),
                None => {
                    self.shared
                        .metrics
                        .prompt_tokens(self.usage.prompt, self.usage.cached);
                    self.events.finish(&mut self.out, &self.usage);
                    self.finished = true;
                }
            }
        }
    }

    fn take(&mut self, mut choice: Choice, progress: Result<Progress, ApiError>) {
        match progress {
            Ok(Progress::Deltas(deltas)) => {
                self.events.grow(&mut self.out, &mut choice, deltas);
                self.running.push(step(choice));
            }
            Ok(Progress::Ended(deltas)) => {
                if !deltas.is_empty() {
                    self.events.grow(&mut self.out, &mut choice, deltas);
                }
                self.usage.add(&choice);
                self.events.end(&mut self.out, &mut choice);
            }
            Err(error) => {
                self.closing
                    .because("another choice of the same reply failed");
                self.running.clear();
                self.events.fail(&mut self.out, &error);
                self.finished = true;
            }
        }
    }
}
