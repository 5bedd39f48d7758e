//! State that all handlers share.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use clawhost_config::AdapterScope;
use clawhost_engine::{Engine, LoadedVersion};
use clawhost_journal::{AdapterOwner, Journal, JournalError, now_ms, run_blocking};
use clawhost_sessions::Sessions;
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{RwLock, Semaphore, watch};

use crate::auth::Caller;
use crate::body;
use crate::control::{ControlPlane, HealthError, StatusSource};
use crate::error::ApiError;
use crate::keys::Scope;
use crate::limits::RateLimits;
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::readiness::Readiness;
use crate::versions::Versions;

/// Replies that start concurrently per CPU; one of them may wait for the disk.
const STARTS_PER_CPU: usize = 2;

/// Longest `user` that has an adapter of its own, in bytes.
const MAX_USER_BYTES: usize = 256;

/// What a handler needs of every request: the server's state, and who calls.
pub(crate) struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) caller: Caller,
}

impl FromRequestParts<Arc<Shared>> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<Shared>,
    ) -> Result<Self, Infallible> {
        let caller = parts.extensions.get::<Caller>();
        Ok(Self {
            shared: Arc::clone(shared),
            caller: caller.expect("every route authenticates").clone(),
        })
    }
}

/// State that all handlers share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) sessions: Sessions,
    pub(crate) journal: Journal,
    pub(crate) status: Arc<dyn StatusSource>,
    pub(crate) control: Arc<dyn ControlPlane>,
    pub(crate) options: GatewayOptions,
    pub(crate) limits: RateLimits,
    pub(crate) slots: Arc<Semaphore>,
    /// Limits how many replies start at once.
    start_permits: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    pub(crate) versions: Versions,
    pub(crate) started_ms: i64,
    stopping: watch::Sender<bool>,
    /// Read-locked while a turn is being closed in the background.
    closing: Arc<RwLock<()>>,
}

impl Shared {
    /// The state of a new gateway.
    pub(crate) fn new(
        engine: Engine,
        sessions: Sessions,
        journal: Journal,
        status: Arc<dyn StatusSource>,
        control: Arc<dyn ControlPlane>,
        options: GatewayOptions,
    ) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let rates = options.keys.iter().map(|key| key.rate().or(options.rate));
        Self {
            limits: RateLimits::new(rates, Instant::now()),
            slots: Arc::new(Semaphore::new(
                options.server.max_concurrent_requests.max(1),
            )),
            start_permits: Arc::new(Semaphore::new(STARTS_PER_CPU * cpus)),
            metrics: Metrics::default(),
            readiness: Readiness::default(),
            versions: Versions::new(options.max_loaded_versions),
            started_ms: now_ms(),
            stopping: watch::Sender::new(false),
            closing: Arc::default(),
            engine,
            sessions,
            journal,
            status,
            control,
            options,
        }
    }

    /// Whether shutdown has begun.
    pub(crate) fn stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// The reason why chat requests do not work; `None` if they do.
    pub(crate) async fn chat_error(&self) -> Option<HealthError> {
        if self.stopping() {
            return Some(HealthError {
                summary: "the server is stopping",
                detail: "new requests are rejected".to_owned(),
            });
        }
        self.readiness.chat_error(&self.engine, &self.journal).await
    }

    /// Becomes true when shutdown begins.
    pub(crate) fn watch_stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// The owner of the adapter that serves a request and that it trains; `None` is the shared adapter.
    pub(crate) fn adapter_owner(
        &self,
        caller: &Caller,
        user: Option<&str>,
    ) -> Result<Option<AdapterOwner>, ApiError> {
        let key = caller.name();
        let user = user.filter(|user| !user.trim().is_empty());
        match (self.options.adapters, user) {
            (AdapterScope::Shared, _) => Ok(None),
            (AdapterScope::User, Some(user)) if user.len() > MAX_USER_BYTES => {
                Err(ApiError::invalid(
                    "user",
                    format!(
                        "each user has an adapter on this server (training.adapters), and `user` is longer than {MAX_USER_BYTES} bytes"
                    ),
                ))
            }
            (AdapterScope::User, Some(user)) => Ok(Some(AdapterOwner::of_user(key, user))),
            (AdapterScope::Key | AdapterScope::User, _) => Ok(key.map(AdapterOwner::of_key)),
        }
    }

    /// The version that serves a request of this caller with this `model`, and the model name of the response. Blocks while
    /// the adapter of `owner` is loaded.
    pub(crate) fn resolve_version(
        &self,
        caller: &Caller,
        owner: Option<&AdapterOwner>,
        model: Option<&str>,
    ) -> Result<(LoadedVersion, String), ApiError> {
        let own = || {
            let version = owner.and_then(|owner| self.control.version_of(owner));
            version.transpose().map_err(ApiError::from)
        };
        self.versions
            .resolve(&self.engine, &self.options, model, caller.adapter, own)
    }

    /// Runs blocking work, such as a journal query, off the async threads. A panic in it fails the request.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = self.clone();
        run_or_fail(move || work(&shared)).await
    }

    /// Runs a query of the journal off the async threads.
    pub(crate) async fn query<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Journal) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.run_blocking(move |shared| Ok(query(&shared.journal)?))
            .await
    }

    /// Reads the JSON body of a request, of at most `max` bytes, if the caller has the scope.
    pub(crate) async fn read_json(
        &self,
        caller: &Caller,
        scope: Scope,
        request: Request,
        max: usize,
    ) -> Result<Value, ApiError> {
        if let Err(error) = caller.require(scope) {
            body::discard(request).await;
            return Err(error);
        }
        let max = max.min(self.options.server.max_body_size);
        body::read_json(request, max, self.options.read_timeout).await
    }

    /// Starts a reply off the async threads. At most [`STARTS_PER_CPU`] per CPU run at a time, so that a burst of
    /// requests does not take the CPUs from replies in progress. The work completes even if the caller is dropped.
    pub(crate) async fn start_reply<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.start_permits.clone().acquire_owned().await;
        run_or_fail(move || {
            let _permit = permit;
            work()
        })
        .await
    }

    /// Closes a turn off the async threads. The work completes even if the caller is dropped, and shutdown waits for it.
    pub(crate) async fn close_turn<T: Send + 'static>(
        self: &Arc<Self>,
        close: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.closing.clone().try_read_owned();
        self.run_blocking(move |shared| {
            let _permit = permit;
            close(shared)
        })
        .await
    }

    /// Closes a turn off the async threads, without waiting for it: its reply was dropped.
    pub(crate) fn close_in_background(
        self: &Arc<Self>,
        close: impl FnOnce(&Self) + Send + 'static,
    ) {
        // No permit means that shutdown has waited already; no runtime means that there is nothing to block.
        let permit = self.closing.clone().try_read_owned();
        let (Ok(permit), Ok(runtime)) = (permit, Handle::try_current()) else {
            return close(self);
        };
        let shared = self.clone();
        runtime.spawn_blocking(move || {
            close(&shared);
            drop(permit);
        });
    }

    /// Waits until all turns of dropped replies are closed.
    pub(crate) async fn wait_until_closed(&self) {
        drop(self.closing.write().await);
    }

    pub(crate) fn begin_shutdown(&self) {
        self.stopping.send_replace(true);
    }
}

/// Runs blocking work off the async threads. A panic in it is an error of the request.
async fn run_or_fail<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let result = AssertUnwindSafe(run_blocking(work)).catch_unwind().await;
    result.unwrap_or_else(|panic| Err(ApiError::from_panic(&*panic)))
}
