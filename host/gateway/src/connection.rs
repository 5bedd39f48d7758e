//! One accepted connection, with or without TLS. It is closed when its client stops reading.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;
use tower_http::add_extension::AddExtension;

use crate::shared::Shared;

/// Largest number of header fields in a request.
const MAX_FIELDS: usize = 128;
/// Read buffer of a connection in bytes; also hyper's limit for a request head, which applies before ours.
const READ_BUFFER: usize = 128 << 10;

/// State of a connection that its requests can see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    stalled: Arc<AtomicBool>,
}

impl Peer {
    /// Whether the connection was closed because the client did not read (write timeout).
    pub(crate) fn has_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

/// Serves a connection until it closes, or until replies in progress are complete once `finishing` is true.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    router: Router,
    stream: TcpStream,
    mut finishing: watch::Receiver<bool>,
) {
    // A token is a small packet that must not wait for Nagle's algorithm.
    let _ = stream.set_nodelay(true);
    let options = &shared.options;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(options.server.write_timeout));
    let stream = Box::pin(stream);
    let Some(tls) = &options.tls else {
        return serve_http(&shared, router, stream, finishing).await;
    };
    let handshake = tokio::time::timeout(options.read_timeout, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = wait_for_stop(&mut finishing) => return,
    };
    match accepted {
        Ok(Ok(stream)) => serve_http(&shared, router, stream, finishing).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve_http<S>(
    shared: &Shared,
    router: Router,
    stream: S,
    mut finishing: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Peer::default();
    let service = AddExtension::new(router, peer.clone());
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.options.read_timeout)
        .max_headers(MAX_FIELDS)
        .max_buf_size(READ_BUFFER.max(shared.options.max_head));
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = wait_for_stop(&mut finishing) => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        // Set before the connection is dropped: dropping it aborts its replies, which read the flag.
        peer.stalled
            .store(is_write_timeout(error.as_ref()), Ordering::Relaxed);
        tracing::trace!(%error, "connection closed with an error");
    }
}

/// Waits until the value is true or its sender is dropped.
pub(crate) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Whether an error was caused by the write timeout.
fn is_write_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::TimedOut)
}
