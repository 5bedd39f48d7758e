//! The accept loop and graceful shutdown.
//!
//! At the stop signal the listener closes at once, so that another process can bind the address. Replies in progress
//! have `server.shutdown_timeout` to finish; then their connections are dropped, which records the replies as aborted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::connection::{self, wait_for_stop};
use crate::shared::Shared;

/// Pause after `accept` failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `stop`.
pub(crate) async fn run(
    shared: Arc<Shared>,
    router: Router,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let permits = Arc::new(Semaphore::new(shared.options.max_connections.max(1)));
    let (finish, finishing) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        // The permit is acquired before `accept`, so that connections over the limit wait in the listen queue.
        let permit = tokio::select! {
            () = wait_for_stop(&mut stop) => break,
            permit = permits.clone().acquire_owned() => permit.map_err(std::io::Error::other)?,
        };
        let accepted = tokio::select! {
            () = wait_for_stop(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection =
                    connection::serve(shared.clone(), router.clone(), stream, finishing.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    shared.begin_shutdown();
    let _ = finish.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(shared.options.server.shutdown_timeout, drained)
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "shutdown grace period expired; aborting the replies in progress"
        );
        connections.shutdown().await;
    }
    shared.wait_until_closed().await;
    Ok(())
}

/// Whether an accept error concerns a single connection, not the listener.
fn is_connection_error(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::ConnectionRefused
            | std::io::ErrorKind::ConnectionAborted
            | std::io::ErrorKind::ConnectionReset
    )
}
