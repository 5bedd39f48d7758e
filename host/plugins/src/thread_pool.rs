//! The thread pool that runs plugins.
//!
//! A guest may compute for milliseconds between two yields. On a separate pool such slices never delay a streamed token,
//! and when there are fewer cores than threads, the low priority of these threads makes them wait.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::error::PluginError;

/// The plugin thread pool. Dropping it never blocks, so a host may be dropped in async code.
pub(crate) struct PluginThreadPool {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl PluginThreadPool {
    pub(crate) fn start(count: usize) -> Result<PluginThreadPool, PluginError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name("plugin")
            .on_thread_start(lower_priority)
            // Time for limits, I/O for the connections to machines.
            .enable_all()
            .build()
            .map_err(|error| {
                PluginError::Host(format!("cannot start the plugin threads: {error}"))
            })?;
        Ok(PluginThreadPool {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Runs a future on this pool: within the caller's task if that is on the pool, so that nothing is handed over, and else
    /// in a task of its own. Dropping the returned future aborts it.
    ///
    /// # Errors
    /// The text of a panic of the future.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        let is_here = Handle::try_current().is_ok_and(|here| here.id() == self.handle.id());
        if !is_here {
            return self.spawn(work).await.map_err(|error| error.to_string());
        }
        let work = AssertUnwindSafe(Box::pin(work)).catch_unwind();
        work.await
            .map_err(|_| "the task of the call panicked".to_owned())
    }

    /// Runs a future in a task on this pool. Dropping the returned handle aborts it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDrop<T> {
        AbortOnDrop(self.handle.spawn(work))
    }
}

impl Drop for PluginThreadPool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of this thread on Linux, where threads have their own nice value. At nice 15 a thread gets about
/// a thirtieth of a core that it competes for: judging makes progress under any load, and a serving thread hardly ever
/// waits for the end of a guest's time slice.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 15) {
        tracing::debug!(%error, "cannot lower the priority of a plugin thread");
    }
}

/// Runs host work in its own task instead of on the guest's small stack. Dropping the returned handle aborts it.
pub(crate) fn spawn_abort_on_drop<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> AbortOnDrop<T> {
    AbortOnDrop(tokio::spawn(work))
}

/// A task handle that aborts the task when it is dropped.
pub(crate) struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn work_of_a_task_on_the_pool_is_not_handed_over() {
        let pool = Arc::new(PluginThreadPool::start(2).unwrap());
        let own = Arc::clone(&pool);
        let (outer, inner, failed) = pool
            .run(async move {
                let inner = own.run(async { tokio::task::id() }).await.unwrap();
                let failed = own.run(async { panic!("on purpose") }).await;
                (tokio::task::id(), inner, failed.map(|(): ()| ()))
            })
            .await
            .unwrap();
        assert_eq!(outer, inner);
        assert!(failed.unwrap_err().contains("panicked"));
        let failed = pool.run(async { panic!("on purpose") }).await;
        assert!(failed.map(|(): ()| ()).unwrap_err().contains("panicked"));
    }
}
