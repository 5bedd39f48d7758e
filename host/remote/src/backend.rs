//! The [`RemoteBackend`] of the engine: submits requests to the server and publishes versions to it.
//!
//! It has its own small runtime, so that any thread can call it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use clawhost_engine::{
    ActivateVersion, Engine, EngineStats, GenerateRequest, LoadedVersion, RemoteBackend,
    SubmitError, TokenSink,
};
use clawhost_model::{Adapter, LoraSpec};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore, watch};

use crate::adapters::Adapters;
use crate::client::RemoteClient;
use crate::error::RemoteError;
use crate::http::HttpClient;
use crate::logprobs_mode::LogprobsMode;
use crate::probe::probe;
use crate::state::{ActivateHandle, BackendState, Counters, RunningRequest, lock};
use crate::wire::check_supported;
use clawhost_config::RemoteConfig;

/// Replies scored locally at once: each uses all threads of the model.
const MAX_CONCURRENT_SCORING: usize = 1;
/// The prompt of the probe requests.
const PROBE_TEXT: &str = "Two programs continue this text with the same words, so that what they find of each word can be compared:";

/// A vLLM or SGLang server that generates in place of the engine's scheduler, with the weights that are loaded here.
#[derive(Debug)]
pub struct HttpBackend {
    state: Arc<BackendState>,
    /// `None` while dropping.
    runtime: Option<Runtime>,
}

impl HttpBackend {
    /// Connects to a server and probes whether it can generate for `engine`. Blocks until the probe is complete.
    /// `lora` is the shape of the adapters that will be published; if there is one, loading one is probed too.
    ///
    /// # Errors
    /// Why it cannot be used, with a fix.
    pub fn connect(
        options: RemoteConfig,
        lora: Option<LoraSpec>,
        engine: &Engine,
    ) -> Result<Arc<Self>, RemoteError> {
        let http = HttpClient::new(&options)?;
        let unusable = |reason: String| RemoteError::Unusable {
            url: options.url.clone(),
            reason,
        };
        let mut prompt = engine
            .tokenizer()
            .encode(PROBE_TEXT)
            .map_err(|error| unusable(error.to_string()))?;
        prompt.truncate((engine.context() / 2).max(1));
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("clawhost-remote")
            .enable_all()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let client = Arc::new(RemoteClient {
            http,
            backend: Arc::clone(engine.backend()),
            prompt,
            options,
        });
        let probe_client = Arc::clone(&client);
        let (result, adapters) = block_on_runtime(&runtime, async move {
            let result = probe(&probe_client).await?;
            let adapters = Adapters::default();
            if let Some(lora) = lora {
                probe_adapter(&probe_client, &adapters, lora, result.logprob_noise).await?;
            }
            Ok::<_, RemoteError>((result, adapters))
        })
        .unwrap_or_else(|| {
            Err(RemoteError::Unusable {
                url: client.options.url.clone(),
                reason: "the probe task panicked".to_owned(),
            })
        })?;
        let state = Arc::new(BackendState {
            client,
            probe: result,
            adapters,
            activate: OnceLock::new(),
            unreachable: Mutex::new(None),
            pending_version: Mutex::new(None),
            recheck: Notify::new(),
            closing: AtomicBool::new(false),
            abort: watch::Sender::new(false),
            scoring_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SCORING)),
            counts: Counters::default(),
        });
        runtime.spawn(Arc::clone(&state).monitor());
        tracing::info!(
            url = state.client.options.url,
            logprobs_mode = ?result.logprobs_mode,
            logprob_difference = result.logprob_noise,
            "using a remote backend for generation"
        );
        Ok(Arc::new(Self {
            state,
            runtime: Some(runtime),
        }))
    }

    /// How the server computes the log-probs that it returns.
    pub fn logprobs_mode(&self) -> LogprobsMode {
        self.state.probe.logprobs_mode
    }

    /// Mean difference, in nats, between the server's log-probs and the local model's when it was connected.
    pub fn logprob_difference(&self) -> f64 {
        self.state.probe.logprob_noise
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        block_on_runtime(self.runtime.as_ref()?, work)
    }
}

/// Runs work on the runtime and blocks until it is done, also from within another runtime. Returns `None` when the task
/// panicked.
fn block_on_runtime<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    runtime.spawn(async move {
        // The receiver is alive: the caller blocks on it.
        let _sent = sender.send(work.await);
    });
    receiver.recv().ok()
}

/// Loads an adapter that changes nothing and requests tokens with it.
async fn probe_adapter(
    client: &RemoteClient,
    adapters: &Adapters,
    lora: LoraSpec,
    logprob_noise: f64,
) -> Result<(), RemoteError> {
    let adapter = Arc::new(Adapter::init(client.backend.model().config(), lora, 0));
    let served = LoadedVersion::new(0, adapter);
    let published = adapters.publish(client, &served, logprob_noise).await;
    drop(served);
    adapters.unload_unused(client).await;
    published.map_err(|failure| RemoteError::NoAdapters {
        url: client.options.url.clone(),
        kind: client.options.backend,
        reason: failure.reason,
    })
}

impl Drop for HttpBackend {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A plain drop would block, which a thread of another runtime must not.
            runtime.shutdown_background();
        }
    }
}

impl RemoteBackend for HttpBackend {
    fn attach(&self, activate: ActivateVersion) {
        // The engine calls this once.
        let _second = self.state.activate.set(ActivateHandle(activate));
    }

    fn submit(&self, request: GenerateRequest, reply: TokenSink) -> Result<(), SubmitError> {
        let state = Arc::clone(&self.state);
        if state.closing.load(Ordering::Relaxed) {
            return Err(SubmitError::ShuttingDown);
        }
        if let Some(reason) = lock(&state.unreachable).clone() {
            return Err(SubmitError::Unavailable(reason));
        }
        state
            .probe
            .logprobs_mode
            .check_sampling(&request.sampling)
            .and_then(|()| check_supported(&request.sampling))
            .map_err(SubmitError::Unsupported)?;
        let limit = state.client.options.max_concurrent_requests;
        let running = RunningRequest::start(&state);
        if running.number > limit {
            let waiting = running.number - 1;
            return Err(SubmitError::Busy { waiting, limit });
        }
        let (accepted, accepted_rx) = std::sync::mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime else {
            return Err(SubmitError::ShuttingDown);
        };
        runtime.spawn(async move {
            let _running = running;
            match state.start_reply(&request, &reply).await {
                Ok(response) => {
                    let _waits = accepted.send(Ok(()));
                    state.stream_reply(request, reply, response).await;
                }
                Err(error) => {
                    let _waits = accepted.send(Err(error));
                }
            }
        });
        accepted_rx.recv().unwrap_or(Err(SubmitError::ShuttingDown))
    }

    fn load_version(&self, version: &LoadedVersion) -> Result<(), String> {
        let (state, served) = (Arc::clone(&self.state), version.clone());
        self.run(async move {
            *lock(&state.pending_version) = None;
            let published = state.publish(&served).await;
            if let Err(failure) = &published
                && failure.retryable
            {
                *lock(&state.pending_version) = Some(served);
                state.mark_unreachable(failure.reason.clone());
            }
            published.map_err(|failure| failure.reason)
        })
        .unwrap_or_else(|| Err("the engine is shutting down".to_owned()))
    }

    fn ready(&self) -> Result<(), String> {
        lock(&self.state.unreachable).clone().map_or(Ok(()), Err)
    }

    fn stats(&self) -> EngineStats {
        let counts = &self.state.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        EngineStats {
            running: counts.running.load(Ordering::Relaxed),
            finished: read(&counts.finished),
            cancelled: read(&counts.cancelled),
            failed: read(&counts.failed),
            tokens_generated: read(&counts.tokens),
            cached_tokens: read(&counts.cached),
            ..EngineStats::default()
        }
    }

    fn close(&self, grace: Duration) {
        self.state.closing.store(true, Ordering::Relaxed);
        let state = Arc::clone(&self.state);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                state.abort.send_replace(true);
            });
        }
    }
}
