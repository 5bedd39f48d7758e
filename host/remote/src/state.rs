//! The state of a connected server: whether it is reachable, its adapters and running requests.
//!
//! While it is unreachable, requests fail with that reason. Once it answers again, its weights are checked again, the
//! adapters in use are reloaded, and a version that could not be published in the meantime is published and activated.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use clawhost_engine::{ActivateVersion, GenerateRequest, LoadedVersion, SubmitError, TokenSink};
use reqwest::Response;
use tokio::sync::{Notify, Semaphore, watch};

use crate::adapters::{Adapters, PublishFailure};
use crate::client::RemoteClient;
use crate::http::CallError;
use crate::probe::{ProbeResult, check_weights};
use crate::reply_stream::{Outcome, ReplyStream};
use crate::wire::CompletionRequest;
use crate::wire::WireFormat;

/// The state shared by requests and the monitor task.
#[derive(Debug)]
pub(crate) struct BackendState {
    pub(crate) client: Arc<RemoteClient>,
    pub(crate) probe: ProbeResult,
    pub(crate) adapters: Adapters,
    pub(crate) activate: OnceLock<ActivateHandle>,
    /// Why the server is unreachable, if it is.
    pub(crate) unreachable: Mutex<Option<String>>,
    /// The version to publish and activate once the server is back.
    pub(crate) pending_version: Mutex<Option<LoadedVersion>>,
    /// Wakes the monitor for a health check.
    pub(crate) recheck: Notify,
    pub(crate) closing: AtomicBool,
    pub(crate) abort: watch::Sender<bool>,
    pub(crate) scoring_permits: Arc<Semaphore>,
    pub(crate) counts: Counters,
}

/// The engine's callback that activates a version.
pub(crate) struct ActivateHandle(pub(crate) ActivateVersion);

impl std::fmt::Debug for ActivateHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ActivateVersion")
    }
}

/// Request counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) running: AtomicUsize,
    pub(crate) finished: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) tokens: AtomicU64,
    pub(crate) cached: AtomicU64,
}

/// Ignores poisoning: each value is replaced atomically.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running request; decrements the counter when dropped.
pub(crate) struct RunningRequest {
    state: Arc<BackendState>,
    /// Number of running requests, including this one.
    pub(crate) number: usize,
}

impl RunningRequest {
    pub(crate) fn start(state: &Arc<BackendState>) -> Self {
        let number = state.counts.running.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            state: Arc::clone(state),
            number,
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.state.counts.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BackendState {
    /// Starts a reply. When it fails nothing has been received, so a retry is safe.
    pub(crate) async fn start_reply(
        &self,
        request: &GenerateRequest,
        reply: &TokenSink,
    ) -> Result<Response, SubmitError> {
        match self.send_request(request, reply).await? {
            Err((error, Some(name))) if error.may_lack_adapter() => {
                // The server restarted or evicted the adapter.
                self.adapters.forget(&name);
                let again = self.send_request(request, reply).await?;
                again.map_err(|(error, _)| self.submit_error(&error))
            }
            other => other.map_err(|(error, _)| self.submit_error(&error)),
        }
    }

    /// The outer error: the adapter is not available.
    async fn send_request(
        &self,
        request: &GenerateRequest,
        reply: &TokenSink,
    ) -> Result<Result<Response, (CallError, Option<String>)>, SubmitError> {
        let client = &self.client;
        let name = self.adapters.ensure_loaded(client, &request.version).await;
        let name = name.map_err(|failure| {
            if failure.retryable {
                self.mark_unreachable(failure.reason.clone());
            }
            SubmitError::Unavailable(failure.reason)
        })?;
        let completion = CompletionRequest {
            model: name.as_deref().unwrap_or(&client.options.model),
            is_adapter: name.is_some(),
            prompt: &request.prompt,
            sampling: &request.sampling,
            stop_token_ids: reply.stop_token_ids(),
            max_tokens: reply.remaining_tokens(),
        };
        let kind = client.options.backend;
        let response = client.http.post(kind.path(), &kind.body(&completion)).await;
        Ok(response.map_err(|error| (error, name)))
    }

    fn submit_error(&self, error: &CallError) -> SubmitError {
        let url = &self.client.options.url;
        let reason = format!("the remote backend {url} rejected the request: {error}");
        match error {
            CallError::Busy { retry_after_s, .. } => SubmitError::Overloaded {
                reason,
                retry_after_s: *retry_after_s,
            },
            CallError::Status { status: 400, .. } | CallError::Status { status: 422, .. } => {
                SubmitError::Unsupported(reason)
            }
            error => {
                if error.is_unreachable() {
                    self.mark_unreachable(reason.clone());
                }
                SubmitError::Unavailable(reason)
            }
        }
    }

    pub(crate) async fn stream_reply(
        &self,
        request: GenerateRequest,
        reply: TokenSink,
        response: Response,
    ) {
        let stream = ReplyStream {
            client: Arc::clone(&self.client),
            logprobs_mode: self.probe.logprobs_mode,
            request,
            reply,
            abort: self.abort.subscribe(),
            scoring_permits: Arc::clone(&self.scoring_permits),
        };
        let (outcome, received) = stream.run(response).await;
        let counts = &self.counts;
        let tokens = u64::try_from(received.ids.len()).unwrap_or(u64::MAX);
        let cached = u64::try_from(received.cached).unwrap_or(u64::MAX);
        counts.tokens.fetch_add(tokens, Ordering::Relaxed);
        counts.cached.fetch_add(cached, Ordering::Relaxed);
        let count = match outcome {
            Outcome::Finished => &counts.finished,
            Outcome::Cancelled => &counts.cancelled,
            Outcome::Failed => {
                // A broken connection may be the first sign that the server is down.
                self.recheck.notify_one();
                &counts.failed
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) async fn publish(&self, version: &LoadedVersion) -> Result<(), PublishFailure> {
        self.adapters
            .publish(&self.client, version, self.probe.logprob_noise)
            .await?;
        self.adapters.unload_unused(&self.client).await;
        Ok(())
    }

    /// Marks the server as unreachable.
    pub(crate) fn mark_unreachable(&self, reason: String) {
        let first = lock(&self.unreachable).replace(reason.clone()).is_none();
        if first {
            tracing::error!(reason, "the remote backend is unreachable");
            self.recheck.notify_one();
        }
    }

    /// Runs until shutdown: checks the server's health and unloads unused adapters.
    pub(crate) async fn monitor(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.client.options.health_check_interval) => {}
                () = self.recheck.notified() => {}
            }
            let was_unreachable = lock(&self.unreachable).is_some();
            match self.client.http.health().await {
                // A server without a health endpoint still answers.
                Ok(()) | Err(CallError::Status { status: 404, .. }) if was_unreachable => {
                    match self.reconnect().await {
                        Ok(()) => {
                            *lock(&self.unreachable) = None;
                            tracing::info!("the remote backend is reachable again");
                        }
                        Err(reason) => {
                            lock(&self.unreachable).replace(reason);
                        }
                    }
                }
                Err(error) if error.is_unreachable() => {
                    let url = &self.client.options.url;
                    self.mark_unreachable(format!(
                        "the remote backend {url} does not respond: {error}"
                    ));
                }
                _ => {}
            }
            if lock(&self.unreachable).is_none() {
                self.adapters.unload_unused(&self.client).await;
            }
            if was_unreachable && lock(&self.unreachable).is_some() {
                // Limits the retry rate when requests wake the monitor.
                tokio::time::sleep(self.client.options.health_check_interval).await;
            }
        }
    }

    /// Checks that a returning server has the same weights, and restores its adapters and the pending version.
    async fn reconnect(&self) -> Result<(), String> {
        check_weights(&self.client)
            .await
            .map_err(|error| error.to_string())?;
        let loaded = self.adapters.reload_all(&self.client).await;
        loaded.map_err(|failure| failure.reason)?;
        let pending_version = lock(&self.pending_version).clone();
        if let Some(version) = pending_version {
            match self.publish(&version).await {
                Ok(()) => {
                    // Unless another version was published in the meantime.
                    let pending = lock(&self.pending_version).take();
                    if let (Some(version), Some(activate)) = (pending, self.activate.get()) {
                        tracing::info!(version = version.version, "published the pending version");
                        (activate.0)(version);
                    }
                }
                Err(failure) if failure.retryable => return Err(failure.reason),
                Err(failure) => {
                    tracing::error!(
                        version = version.version,
                        reason = failure.reason,
                        "cannot publish the pending version"
                    );
                    *lock(&self.pending_version) = None;
                }
            }
        }
        Ok(())
    }
}
