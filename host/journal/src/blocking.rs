//! Runs work that waits for the disk off the async threads.

use std::panic::resume_unwind;

/// Runs `work` on a thread that may block, such as several queries of a [`Journal`](crate::Journal). The work completes
/// even if the caller is dropped. A panic in it continues in the caller.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The work was cancelled, because the runtime stops: it drops the caller too.
            Err(_) => std::future::pending().await,
        },
    }
}
