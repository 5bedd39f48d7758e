//! Accepting connections, and ending well.
//!
//! At the signal the listener closes at once, so that a successor can take the address; replies in
//! progress get their time; what is left is cut by dropping its connection, which records it as aborted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::gateway::Shared;

/// Header fields in one request.
const MAX_FIELDS: usize = 128;
/// Bytes that one connection reads ahead; also what hyper allows for a head, before our own limit is
/// looked at.
const READ_BUFFER: usize = 128 << 10;
/// A pause after the system refused a connection for want of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `stop`.
pub(crate) async fn run(
    shared: Arc<Shared>,
    router: Router,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let places = Arc::new(Semaphore::new(shared.options.max_connections.max(1)));
    let (finish, finishing) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        // A place is taken before a connection is accepted: further ones wait in the listen queue.
        let place = tokio::select! {
            () = told_to_stop(&mut stop) => break,
            place = places.clone().acquire_owned() => place.map_err(std::io::Error::other)?,
        };
        let accepted = tokio::select! {
            () = told_to_stop(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection =
                    serve_one(shared.clone(), router.clone(), stream, finishing.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) if of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    shared.stop();
    let _ = finish.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(shared.options.shutdown_grace, all)
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "replies in progress are cut, their time is up"
        );
        connections.shutdown().await;
    }
    Ok(())
}

async fn serve_one(
    shared: Arc<Shared>,
    router: Router,
    stream: TcpStream,
    mut finishing: watch::Receiver<bool>,
) {
    // A token is a small packet, and it should leave now.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.options.read_timeout)
        .max_headers(MAX_FIELDS)
        .max_buf_size(READ_BUFFER.max(shared.options.max_head));
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_stop(&mut finishing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection broke off");
    }
}

/// Waits until the value is true, or until there is nobody left who could make it so.
async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Errors that concern a connection that is gone already, not the listener.
fn of_one_connection(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::ConnectionRefused
            | std::io::ErrorKind::ConnectionAborted
            | std::io::ErrorKind::ConnectionReset
    )
}
