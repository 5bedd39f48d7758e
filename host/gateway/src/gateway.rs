//! The HTTP surface as one value: what it serves with, and which path goes where.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::Router;
use clawhost_journal::{Change, Journal, JournalError, Standing, now_ms};
use clawhost_policy::Engine;
use clawhost_sessions::Sessions;
use serde_json::Value;
use tokio::sync::Semaphore;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use tower_http::decompression::RequestDecompressionLayer;

use crate::admission;
use crate::error::ApiError;
use crate::limits::RateLimits;
use crate::metrics::Metrics;
use crate::options::GatewayOptions;
use crate::readiness::Readiness;
use crate::versions::Versions;
use crate::{routes, serve};

/// Replies that are begun at a time for each processor; one of them may wait for the disk.
const BEGINNINGS: usize = 2;

/// Smallest body that is compressed, in bytes; below it the saving is a packet at most.
const MIN_COMPRESSED: u16 = 1024;

/// State of the loops that the gateway does not know itself: judging, training, plugins.
pub trait StatusSource: Send + Sync {
    /// An object that is merged into `/healthz`, for example
    /// `{"judging": {"ready": 0, "running": 1}, "training": {…}}`.
    fn status(&self) -> Value;
    /// What of the loops does not work; empty when all does. Chat goes on whatever is in it.
    fn faults(&self) -> Vec<Fault>;
    /// Further lines in the Prometheus text format for `/metrics`; may be empty.
    fn metrics(&self) -> String;
    /// Looks at the files of the plugins now, takes what has changed and can be used, and answers the plugins
    /// as they are then. May block for as long as compiling takes. Default: there are none.
    fn reload(&self) -> Option<Value> {
        None
    }
    /// Changes which version is served, by the word of the person with this key, and tells what stands then. May block
    /// for as long as reading a checkpoint takes. Default: nobody can.
    fn release(&self, _change: Change, _by: Option<&str>) -> Option<Result<Standing, NotChanged>> {
        None
    }
}

/// A part of the server that does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What does not work, in words for everybody.
    pub what: &'static str,
    /// Why. It may name files and hosts, so only the operator sees it.
    pub why: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Why what is served was not changed; it is what it was.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    /// The journal refuses it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The version cannot be served here; says why, and what would mend it.
    #[error("{0}")]
    Unservable(String),
    /// Whatever generates does not take it now.
    #[error("{0}")]
    Unavailable(String),
}

/// What every handler shares.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) sessions: Sessions,
    pub(crate) journal: Journal,
    pub(crate) status: Arc<dyn StatusSource>,
    pub(crate) options: GatewayOptions,
    pub(crate) limits: RateLimits,
    pub(crate) slots: Arc<Semaphore>,
    /// Turns to begin a reply.
    beginnings: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    pub(crate) versions: Versions,
    pub(crate) started_ms: i64,
    stopping: AtomicBool,
}

impl Shared {
    /// Whether the server has been told to stop.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Asks the journal something that may take longer than a request should hold up others.
    pub(crate) async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = self.clone();
        let answer = tokio::task::spawn_blocking(move || question(&shared)).await;
        answer.unwrap_or_else(|error| {
            tracing::error!(%error, "a question to the journal broke off");
            Err(ApiError::internal(
                "read_failed",
                "the journal could not be read; the operator finds the reason in the log",
            ))
        })
    }

    /// Begins a reply, off the threads that serve requests, and only so many at a time as get on with it: a burst of
    /// requests must not take the processors from the replies under way. The work ends even when nobody waits for it.
    pub(crate) async fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.beginnings.clone().acquire_owned().await;
        let begun = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        begun.await.unwrap_or_else(|error| {
            tracing::error!(%error, "beginning a reply broke off");
            Err(ApiError::internal(
                "reply_failed",
                "the reply could not be begun; the operator finds the reason in the log",
            ))
        })
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// The HTTP server of one engine.
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    /// A gateway to this engine, which records what it serves through `sessions`.
    pub fn new(
        engine: Engine,
        sessions: Sessions,
        journal: Journal,
        status: Arc<dyn StatusSource>,
        options: GatewayOptions,
    ) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let rates = options.keys.iter().map(|key| key.rate().or(options.rate));
        let shared = Shared {
            limits: RateLimits::new(rates, Instant::now()),
            slots: Arc::new(Semaphore::new(options.max_concurrent.max(1))),
            beginnings: Arc::new(Semaphore::new(BEGINNINGS * processors)),
            metrics: Metrics::default(),
            readiness: Readiness::default(),
            versions: Versions::new(options.held_versions),
            started_ms: now_ms(),
            stopping: AtomicBool::new(false),
            engine,
            sessions,
            journal,
            status,
            options,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// All paths, behind CORS and admission (keys, guard, limits).
    pub fn router(&self) -> Router {
        // Streams are not compressed: a compressor would hold events back.
        let compressed = SizeAbove::new(MIN_COMPRESSED).and(NotForContentType::SSE);
        let router = routes::all()
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
                    .compress_when(compressed),
            );
        let router = match self.shared.options.allowed_origins.layer() {
            Some(cors) => router.layer(cors),
            None => router,
        };
        router.with_state(self.shared.clone())
    }

    /// Serves until `stop` becomes true (or its sender is gone), then lets replies in progress finish
    /// within [`GatewayOptions::shutdown_grace`] and cuts the rest, which records them as aborted.
    ///
    /// # Errors
    /// When the listener breaks down.
    pub async fn serve(
        self,
        listener: tokio::net::TcpListener,
        stop: tokio::sync::watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let router = self.router();
        serve::run(self.shared, router, listener, stop).await
    }
}
