//! Threads that belong to plugins alone.
//!
//! A guest may compute for milliseconds between two yields. On threads of their own such slices
//! never stand in front of a token that streams to a person; and where there are fewer cores than
//! threads, these are the ones that wait.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::error::PluginError;

/// The threads. Dropping them never blocks, so a host may be dropped anywhere.
pub(crate) struct PluginThreads {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl PluginThreads {
    pub(crate) fn start(count: usize) -> Result<PluginThreads, PluginError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name("plugin")
            .on_thread_start(stand_back)
            .enable_time()
            .build()
            .map_err(|error| PluginError::Host(format!("no threads for plugins: {error}")))?;
        Ok(PluginThreads {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Runs work on these threads; dropping the answer ends it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Tied<T> {
        Tied(self.handle.spawn(work))
    }
}

impl Drop for PluginThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of this thread, where threads have one of their own. At 15, of 0 to 19, the system
/// gives it about a thirtieth of a core that both want, so that judging goes on under any load, and a thread
/// that serves hardly ever waits for the end of a guest's slice.
fn stand_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 15) {
        tracing::debug!(%error, "plugins compete with serving on equal terms");
    }
}

/// Runs host work beside the guest instead of on its small stack; dropping the answer ends it.
pub(crate) fn spawn_tied<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Tied<T> {
    Tied(tokio::spawn(work))
}

/// A task that lives no longer than somebody waits for it.
pub(crate) struct Tied<T>(JoinHandle<T>);

impl<T> Future for Tied<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Tied<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
