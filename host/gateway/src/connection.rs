//! One accepted connection: encrypted or not, closed when its client stops reading.

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

use crate::gateway::Shared;
use crate::serve::told_to_stop;

/// Header fields in one request.
const MAX_FIELDS: usize = 128;
/// Bytes that one connection reads ahead; also what hyper allows for a head, before our own limit is
/// looked at.
const READ_BUFFER: usize = 128 << 10;

/// What requests know of the connection that they came over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    stalled: Arc<AtomicBool>,
}

impl Peer {
    /// Whether the connection was closed because the client took nothing of what was sent to it.
    pub(crate) fn has_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

/// Serves one connection to its end, or until replies in progress are done once `finishing` is true.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    router: Router,
    stream: TcpStream,
    mut finishing: watch::Receiver<bool>,
) {
    // A token is a small packet, and it should leave now.
    let _ = stream.set_nodelay(true);
    let options = &shared.options;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(options.write_timeout));
    let stream = Box::pin(stream);
    let Some(tls) = &options.tls else {
        return http(&shared, router, stream, finishing).await;
    };
    let handshake = tokio::time::timeout(options.read_timeout, tls.acceptor().accept(stream));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = told_to_stop(&mut finishing) => return,
    };
    match accepted {
        Ok(Ok(stream)) => http(&shared, router, stream, finishing).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn http<S>(shared: &Shared, router: Router, stream: S, mut finishing: watch::Receiver<bool>)
where
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
        () = told_to_stop(&mut finishing) => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        // Before the connection is dropped, and with it the replies that it was to carry.
        peer.stalled
            .store(timed_out(error.as_ref()), Ordering::Relaxed);
        tracing::trace!(%error, "a connection broke off");
    }
}

/// Whether an error came from a write that made no progress.
fn timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::TimedOut)
}
