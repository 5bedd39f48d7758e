//! Accepting connections, and ending well.
//!
//! At the signal the listener closes at once, so that a successor can take the address; replies in
//! progress get their time; what is left is cut by dropping its connection, which records it as aborted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::connection;
use crate::gateway::Shared;

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
                    connection::serve(shared.clone(), router.clone(), stream, finishing.clone());
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

/// Waits until the value is true, or until there is nobody left who could make it so.
pub(crate) async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
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
