//! The [`Gateway`]: state that all handlers share, and the router.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use clawhost_journal::{Journal, JournalError, ReleaseChange, ReleaseState, now_ms};
use clawhost_policy::Engine;
use clawhost_sessions::Sessions;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use tower_http::decompression::RequestDecompressionLayer;

use crate::admission;
use crate::error::ApiError;
use crate::events::Feeds;
use crate::limits::RateLimits;
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::readiness::Readiness;
use crate::versions::Versions;
use crate::{routes, serve};

/// Replies that start concurrently per CPU; one of them may wait for the disk.
const STARTS_PER_CPU: usize = 2;

/// Smallest response body that is compressed, in bytes; smaller bodies fit in one packet anyway.
const MIN_COMPRESSED: u16 = 1024;

/// State and controls of the parts that the gateway does not know itself: judging, training and plugins.
pub trait ControlPlane: Send + Sync {
    /// An object that is merged into `/healthz`, for example
    /// `{"judging": {"ready": 0, "running": 1}, "training": {…}}`.
    fn status(&self) -> Value;
    /// Problems of judging, training and plugins; empty when all of them work. They do not stop chat requests.
    fn health_errors(&self) -> Vec<HealthError>;
    /// Additional metrics in the Prometheus text format for `/metrics`; may be empty.
    fn metrics(&self) -> String;
    /// What the calls of each plugin cost, an array of objects with a `name`; empty without plugins (the default).
    fn plugin_costs(&self) -> Value {
        Value::Array(Vec::new())
    }
    /// Reloads changed plugin files and returns the state of all plugins. Blocks while plugins compile.
    /// `None`: the server has no plugins (the default).
    fn reload_plugins(&self) -> Option<Value> {
        None
    }
    /// Changes which adapter version is served and returns the new release state. `_by` is the name of the API key that
    /// requested the change; the journal records it. Blocks while a checkpoint is read. `None`: the server cannot change
    /// releases (the default).
    fn change_release(
        &self,
        _change: ReleaseChange,
        _by: Option<&str>,
    ) -> Option<Result<ReleaseState, ReleaseError>> {
        None
    }
}

/// A part of the server that does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthError {
    /// What does not work; shown to every caller.
    pub summary: &'static str,
    /// The cause. It may name files and hosts, so it is shown to operators only.
    pub detail: String,
}

impl std::fmt::Display for HealthError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.summary, self.detail)
    }
}

/// Why a release change failed; the served version is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The journal rejected the change.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The version cannot be served here; the message says why and what to do.
    #[error("{0}")]
    Unservable(String),
    /// The inference backend does not accept the version now.
    #[error("{0}")]
    Unavailable(String),
}

/// State that all handlers share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) sessions: Sessions,
    pub(crate) journal: Journal,
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
    /// The snapshots that open event streams share.
    pub(crate) feeds: Feeds,
    stopping: watch::Sender<bool>,
}

impl Shared {
    /// Whether shutdown has begun.
    pub(crate) fn stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Becomes true when shutdown begins.
    pub(crate) fn watch_stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Runs blocking work, such as a journal query, off the async threads.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = self.clone();
        let result = tokio::task::spawn_blocking(move || work(&shared)).await;
        result.unwrap_or_else(|error| {
            tracing::error!(%error, "a blocking task of a request panicked");
            Err(ApiError::internal(
                "read_failed",
                "the request failed inside the server; see the server log for the cause",
            ))
        })
    }

    /// Starts a reply off the async threads. At most [`STARTS_PER_CPU`] per CPU run at a time, so that a burst of
    /// requests does not take the CPUs from replies in progress. The work completes even if the caller is dropped.
    pub(crate) async fn start_reply<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.start_permits.clone().acquire_owned().await;
        let result = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        result.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the task that starts a reply panicked");
            Err(ApiError::internal(
                "reply_failed",
                "the reply could not be started; see the server log for the cause",
            ))
        })
    }

    pub(crate) fn begin_shutdown(&self) {
        self.stopping.send_replace(true);
    }
}

/// The HTTP server of one engine.
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    /// A gateway for this engine that records requests and replies through `sessions`.
    pub fn new(
        engine: Engine,
        sessions: Sessions,
        journal: Journal,
        control: Arc<dyn ControlPlane>,
        options: GatewayOptions,
    ) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let rates = options.keys.iter().map(|key| key.rate().or(options.rate));
        let shared = Shared {
            limits: RateLimits::new(rates, Instant::now()),
            slots: Arc::new(Semaphore::new(options.max_concurrent.max(1))),
            start_permits: Arc::new(Semaphore::new(STARTS_PER_CPU * cpus)),
            metrics: Metrics::default(),
            readiness: Readiness::default(),
            versions: Versions::new(options.max_loaded_versions),
            started_ms: now_ms(),
            feeds: Feeds::default(),
            stopping: watch::Sender::new(false),
            engine,
            sessions,
            journal,
            control,
            options,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// All routes behind the CORS and admission layers (keys, guard, limits).
    pub fn router(&self) -> Router {
        // Streams are not compressed: a compressor would buffer events.
        let compressible = SizeAbove::new(MIN_COMPRESSED).and(NotForContentType::SSE);
        let router = routes::routes()
            .into_iter()
            .fold(Router::new(), |router, (path, handler)| {
                router.route(path, handler)
            })
            .fallback(admission::unknown_path)
            .method_not_allowed_fallback(admission::wrong_method)
            .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
            .layer(axum::middleware::from_fn_with_state(
                self.shared.clone(),
                admission::admit,
            ))
            .layer(
                CompressionLayer::new()
                    .quality(CompressionLevel::Fastest)
                    .compress_when(compressible),
            );
        let router = match self.shared.options.allowed_origins.layer() {
            Some(cors) => router.layer(cors),
            None => router,
        };
        router.with_state(self.shared.clone())
    }

    /// Serves until `stop` becomes true (or its sender is dropped), then waits up to
    /// [`GatewayOptions::shutdown_grace`] for replies in progress. The rest are cancelled and recorded as aborted.
    ///
    /// # Errors
    /// When the accept loop fails.
    pub async fn serve(
        self,
        listener: tokio::net::TcpListener,
        stop: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let router = self.router();
        serve::run(self.shared, router, listener, stop).await
    }
}
