//! `GET /v1/events`: server-sent events that keep a page up to date.
//!
//! | event | data |
//! |---|---|
//! | `caller` | once, first: the name and the scopes of the key, and the time of the server |
//! | `snapshot` | at first and after a change, at most once per second: a [`Snapshot`](snapshot::Snapshot) |
//! | `error` | when no snapshot can be read: the error, in the format of error responses |
//!
//! `?owner=` limits the snapshots for an operator to what belongs to one owner of adapters, such as `?owner=key:alice`, or to the
//! shared adapter (`?owner=shared`).
//!
//! A stream holds no concurrency slot, so that an open page does not take one from chat requests; instead each key has
//! its own limit of streams. A client that reads slowly skips snapshots: the next one is taken when the last one has been
//! sent. A client that reads nothing is disconnected by the write timeout. Streams end when shutdown begins.

mod feed;
pub(crate) mod snapshot;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use clawhost_inspect::Viewer;
use clawhost_journal::now_ms;
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

pub(crate) use self::feed::Feeds;

use self::feed::{Feed, STREAMS_PER_KEY, viewer};
use crate::adapters::{OwnerQueryResult, named_owner};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::{Client, Shared};

/// Shortest time between two snapshots of a stream.
const PERIOD: Duration = Duration::from_secs(1);

/// Streams snapshots to an operator, or those of its own turns to a chat key.
pub(crate) async fn stream(
    Client { shared, caller }: Client,
    Extension(feeds): Extension<Arc<Feeds>>,
    query: OwnerQueryResult,
) -> Result<Response, ApiError> {
    let owner = named_owner(query)?;
    if owner.is_some() {
        caller.require(Scope::Operator)?;
    } else if !caller.has_scope(Scope::Operator) {
        caller.require(Scope::Chat)?;
    }
    let feed = feeds.open(match owner {
        Some(owner) => Viewer::Owner(owner),
        None => viewer(&caller),
    });
    let permit = feed.try_acquire().ok_or_else(|| {
        ApiError::too_many_requests(
            "too_many_streams",
            1,
            format!(
                "{STREAMS_PER_KEY} event streams are open with this key, which is the limit; close a page"
            ),
        )
    })?;
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let state = EventStream {
        stopping: shared.watch_stopping(),
        greeting: Some(greeting(&caller)),
        ticks,
        feed,
        last: None,
        _permit: permit,
        shared: shared.clone(),
    };
    let events = unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(shared.options.keep_alive))
        .into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Disables response buffering in proxies such as nginx.
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    Ok(response)
}

/// The first event: who the client is, and the clock that all times refer to.
fn greeting(caller: &Caller) -> Event {
    let scopes: Vec<&str> = Scope::ALL
        .into_iter()
        .filter(|scope| caller.has_scope(*scope))
        .map(Scope::as_str)
        .collect();
    let data = json!({"key": caller.name(), "scopes": scopes, "now_ms": now_ms()});
    Event::default().event("caller").data(data.to_string())
}

/// The state of a stream between two events.
struct EventStream {
    shared: Arc<Shared>,
    feed: Arc<Feed>,
    stopping: watch::Receiver<bool>,
    ticks: Interval,
    greeting: Option<Event>,
    /// The data of the last event.
    last: Option<Arc<str>>,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    /// The next event; `None` when shutdown begins.
    async fn next(&mut self) -> Option<Event> {
        if let Some(greeting) = self.greeting.take() {
            return Some(greeting);
        }
        loop {
            tokio::select! {
                biased;
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
                _ = self.ticks.tick() => {}
            }
            let feed = self.feed.clone();
            let latest = self
                .shared
                .run_blocking(move |shared| feed.latest(shared))
                .await;
            let (name, data) = match latest {
                Ok(snapshot) => ("snapshot", snapshot),
                Err(error) => ("error", error.to_json().to_string().into()),
            };
            if self.last.as_deref() != Some(&*data) {
                self.last = Some(data.clone());
                return Some(Event::default().event(name).data(&*data));
            }
        }
    }
}
