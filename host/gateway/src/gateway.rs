//! The [`Gateway`]: the router of one engine, and its server.

use std::any::Any;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use clawhost_engine::Engine;
use clawhost_journal::Journal;
use clawhost_sessions::Sessions;
use tokio::sync::watch;
use tower_http::CompressionLevel;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use tower_http::decompression::RequestDecompressionLayer;

use crate::control::{ControlPlane, StatusSource};
use crate::error::ApiError;
use crate::events::Feeds;
use crate::options::GatewayOptions;
use crate::shared::Shared;
use crate::{admission, routes, serve};

/// Smallest response body that is compressed, in bytes; smaller bodies fit in one packet anyway.
const MIN_COMPRESSED: u16 = 1024;

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
        status: Arc<dyn StatusSource>,
        control: Arc<dyn ControlPlane>,
        options: GatewayOptions,
    ) -> Self {
        Self {
            shared: Arc::new(Shared::new(
                engine, sessions, journal, status, control, options,
            )),
        }
    }

    /// All routes behind the CORS and admission layers (keys, guard, limits).
    pub fn router(&self) -> Router {
        // Streams are not compressed: a compressor would buffer events.
        let compressible = SizeAbove::new(MIN_COMPRESSED).and(NotForContentType::SSE);
        let router = routes::routes()
            .into_iter()
            .fold(Router::new(), |router, operation| {
                router.route(operation.path, operation.handler)
            })
            .fallback(admission::unknown_path)
            .method_not_allowed_fallback(admission::wrong_method)
            .layer(Extension(Arc::new(Feeds::default())))
            .layer(CatchPanicLayer::custom(internal_error))
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
    /// `server.shutdown_timeout` for replies in progress. The rest are cancelled and recorded as aborted.
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

/// A panic fails its request, not the connection or the server.
fn internal_error(panic: Box<dyn Any + Send>) -> Response {
    ApiError::from_panic(&*panic).into_response()
}
