//! Snapshots that all streams of one viewer share, so that ten open pages cost as much as one.
//!
//! There is no background task: a snapshot is taken when a stream asks for one and the last one is old. The last stream of
//! a viewer drops its feed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use clawhost_inspect::{RecordLoader, Viewer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::snapshot::Snapshot;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Shared;

/// Streams of one viewer.
pub(super) const STREAMS_PER_KEY: usize = 8;

/// Age at which a snapshot is taken again. Less than the period of a stream, whose ticks are not exact.
const MAX_AGE: Duration = Duration::from_millis(900);

/// What the snapshots for this caller contain.
pub(super) fn viewer(caller: &Caller) -> Viewer {
    match caller.name() {
        Some(name) if !caller.has_scope(Scope::Operator) => Viewer::Key(name.to_owned()),
        _ => Viewer::Operator,
    }
}

/// The feeds with open streams.
#[derive(Default)]
pub(crate) struct Feeds {
    open: Mutex<HashMap<Viewer, Weak<Feed>>>,
}

impl Feeds {
    /// The feed of this viewer.
    pub(super) fn open(&self, viewer: Viewer) -> Arc<Feed> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = open.get(&viewer).and_then(Weak::upgrade) {
            return feed;
        }
        open.retain(|_, feed| feed.strong_count() > 0);
        let feed = Arc::new(Feed {
            permits: Arc::new(Semaphore::new(STREAMS_PER_KEY)),
            state: Mutex::new(FeedState {
                loader: RecordLoader::new(viewer.clone()),
                latest: None,
            }),
        });
        open.insert(viewer, Arc::downgrade(&feed));
        feed
    }
}

/// The snapshots of one viewer.
pub(crate) struct Feed {
    permits: Arc<Semaphore>,
    state: Mutex<FeedState>,
}

struct FeedState {
    loader: RecordLoader,
    latest: Option<(Instant, Arc<str>)>,
}

impl Feed {
    /// A permit for a stream; `None` at the limit.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// The latest snapshot as JSON; takes a new one if it is old. Blocks.
    pub(super) fn latest(&self, shared: &Shared) -> Result<Arc<str>, ApiError> {
        // After a panic the state is at worst incomplete: the loader reads what it lacks.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, snapshot)) = &state.latest
            && at.elapsed() < MAX_AGE
        {
            return Ok(snapshot.clone());
        }
        let snapshot = Snapshot::take(shared, &mut state.loader)?;
        let text = serde_json::to_string(&snapshot).map_err(|error| {
            tracing::error!(%error, "cannot serialize a snapshot");
            ApiError::internal(
                "record_unreadable",
                "the snapshot could not be serialized; see the server log for the cause",
            )
        })?;
        let text: Arc<str> = text.into();
        state.latest = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}
