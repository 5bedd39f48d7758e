//! The threads that run plugins.
//!
//! A guest may compute for milliseconds between two yields. On threads of their own such slices never delay a streamed
//! token, and when there are fewer cores than threads, the low priority of these threads makes them wait. A blocking
//! thread of their runtime has that priority too, so nothing may wait there that holds a lock which others want.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::error::PluginError;

/// A handle to the threads of a plugin host. They run until the host, its plugins and all handles are dropped.
#[derive(Clone)]
pub struct PluginThreads {
    pool: Arc<ThreadPool>,
}

/// Dropping it never blocks, so a host may be dropped in async code.
struct ThreadPool {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl PluginThreads {
    pub(crate) fn start(count: usize) -> Result<PluginThreads, PluginError> {
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
        Ok(PluginThreads {
            pool: Arc::new(ThreadPool {
                handle: runtime.handle().clone(),
                runtime: Some(runtime),
            }),
        })
    }

    /// Runs work that calls plugins of this host on the threads that run their guests, so that no call is handed over
    /// from one thread to another and back: within the caller's task if that is on these threads already, and else in a
    /// task of its own. Dropping the future ends the work. A panic in it continues in the caller.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send {
        // Boxed here, where it was made: every other way moves all of it once more.
        let work = Box::pin(work);
        async move {
            let handle = &self.pool.handle;
            if Handle::try_current().is_ok_and(|here| here.id() == handle.id()) {
                return work.await;
            }
            match AbortOnDrop(handle.spawn(work)).await {
                Ok(done) => done,
                // Not cancelled: only dropping this future does that, and the threads run while it borrows their handle.
                Err(error) => resume_unwind(error.into_panic()),
            }
        }
    }
}

impl std::fmt::Debug for PluginThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginThreads").finish_non_exhaustive()
    }
}

impl Drop for ThreadPool {
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
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn work_of_a_task_on_the_threads_is_not_handed_over() {
        let threads = PluginThreads::start(2).unwrap();
        let own = threads.clone();
        let (outer, inner) = threads
            .run(async move {
                let inner = own.run(async { tokio::task::id() }).await;
                (tokio::task::id(), inner)
            })
            .await;
        assert_eq!(outer, inner);
    }

    #[tokio::test]
    async fn a_panic_continues_in_the_caller() {
        let threads = PluginThreads::start(2).unwrap();
        let own = threads.clone();
        let nested = async move { own.run(async { panic!("on purpose") }).await };
        let panicked = std::panic::AssertUnwindSafe(threads.run::<()>(nested))
            .catch_unwind()
            .await;
        let panic = panicked.unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        // The thread serves others.
        assert_eq!(threads.run(async { 7 }).await, 7);
    }
}
