//! The engine handle: starting an engine, what it was made of, statistics, shutdown.

mod publish;
mod submit;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use tokio::sync::watch;

use super::checkpoint_files::CheckpointFiles;
use super::dispatch::Dispatcher;
use super::engine_core::{EngineCore, RunningThread};
use super::loaded_version::LoadedVersion;
use super::options::EngineOptions;
use super::remote_backend::RemoteBackend;
use super::scheduler::{Scheduler, kv_cache_tokens};
use super::stats::EngineStats;
use super::waiting_queue::WaitingQueue;
use crate::backend::{Backend, ForwardError, SequenceScores};
use crate::engine_load::EngineLoad;
use crate::sampling::{GrammarCompiler, SamplingParams};
use clawhost_chat::{ChatTemplate, ReplyFormat, Tokenizer};
use clawhost_model::{LoadError, Model, ModelConfig, ModelFiles};
pub use publish::PublishError;

/// Handle to a serving engine. Cloning is cheap; the engine shuts down when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    backend: Arc<dyn Backend>,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    defaults: SamplingParams,
    eos_token_ids: Arc<[u32]>,
    /// Compiles structured-output constraints to grammars.
    compiler: Arc<GrammarCompiler>,
    options: EngineOptions,
    active: RwLock<LoadedVersion>,
    /// The checkpoint files it was loaded from.
    files: OnceLock<ModelFiles>,
    replicas: Vec<Replica>,
    dispatcher: Dispatcher,
    /// Whether there are requests; background work yields to them.
    load: Arc<EngineLoad>,
    /// Number of engine threads that run.
    threads: watch::Receiver<usize>,
    /// Generates in place of this process's scheduler, if set.
    remote_backend: OnceLock<Arc<dyn RemoteBackend>>,
}

/// What the handles share with the engine thread of a replica.
#[derive(Debug)]
struct Replica {
    waiting_queue: Arc<WaitingQueue>,
    stats: Arc<Mutex<EngineStats>>,
}

impl Replica {
    fn stats(&self) -> EngineStats {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stats = stats.clone();
        stats.waiting = self.waiting_queue.lock().waiting();
        stats
    }
}

impl Inner {
    fn activate(&self, version: LoadedVersion) {
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        let previous = std::mem::replace(&mut *active, version);
        drop(active);
        // The engine threads drop the cached blocks of the old version, even while idle.
        drop(previous);
        for replica in &self.replicas {
            replica.waiting_queue.wake();
        }
    }

    fn close(&self) {
        let grace = self.options.shutdown_grace;
        for replica in &self.replicas {
            replica.waiting_queue.begin_shutdown(grace);
        }
        if let Some(backend) = self.remote_backend.get() {
            backend.close(grace);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Engine {
    /// Starts an engine on the base model of `backend`.
    ///
    /// # Errors
    /// The device has no memory for the KV cache.
    pub fn new(
        backend: Arc<dyn Backend>,
        tokenizer: Arc<Tokenizer>,
        template: Arc<ChatTemplate>,
        options: EngineOptions,
    ) -> Result<Self, ForwardError> {
        let eos_token_ids = backend.model().config().eos_token_ids.clone();
        let defaults = (SamplingParams::default(), eos_token_ids);
        Self::launch(backend, tokenizer, template, defaults, options)
    }

    /// Starts an engine on a backend that has loaded the weights of this checkpoint. Sampling defaults and additional EOS
    /// tokens come from `generation_config.json`, the special tokens of the chat template from `tokenizer_config.json`.
    ///
    /// # Errors
    /// The missing or malformed file, or the device has no memory for the KV cache.
    pub fn load(
        backend: Arc<dyn Backend>,
        files: &ModelFiles,
        options: EngineOptions,
    ) -> Result<Self, LoadError> {
        let CheckpointFiles {
            tokenizer,
            template,
            defaults,
            eos_token_ids,
        } = CheckpointFiles::new(files, backend.model().config())?;
        let engine = Self::launch(
            backend,
            Arc::new(tokenizer),
            Arc::new(template),
            (defaults, eos_token_ids),
            options,
        )
        .map_err(|error| LoadError::Device {
            reason: error.to_string(),
        })?;
        // The only place that sets it.
        let _first = engine.inner.files.set(files.clone());
        Ok(engine)
    }

    /// Checks the files of a checkpoint other than its weights, as [`Engine::load`] does.
    ///
    /// # Errors
    /// The missing or malformed file.
    pub fn check_files(files: &ModelFiles, config: &ModelConfig) -> Result<(), LoadError> {
        CheckpointFiles::new(files, config).map(drop)
    }

    pub(crate) fn launch(
        backend: Arc<dyn Backend>,
        tokenizer: Arc<Tokenizer>,
        template: Arc<ChatTemplate>,
        (defaults, eos_token_ids): (SamplingParams, Vec<u32>),
        options: EngineOptions,
    ) -> Result<Self, ForwardError> {
        let schedulers =
            (0..backend.replicas()).map(|_| Scheduler::new(&*backend, options.clone()));
        let schedulers: Result<Vec<Scheduler>, ForwardError> = schedulers.collect();
        let schedulers = schedulers?;
        let device = backend.device();
        let blocks: usize = schedulers.iter().map(|one| one.stats.blocks).sum();
        tracing::info!(
            backend = backend.name(),
            device = device.name,
            replicas = schedulers.len(),
            memory = device.memory.map(|memory| memory.total),
            weights = backend.weight_bytes(),
            kv_cache = blocks * backend.block_bytes(),
            "the engine starts"
        );
        let dispatcher = Dispatcher::new(schedulers.len());
        let (running, threads) = watch::channel(0);
        let (running, load) = (Arc::new(running), Arc::new(EngineLoad::default()));
        let start = |(replica, scheduler)| start_replica(replica, scheduler, &load, &running);
        let replicas = schedulers.into_iter().enumerate().map(start).collect();
        let base = LoadedVersion::base(backend.model());
        let eos_token_ids: Arc<[u32]> = eos_token_ids.into();
        let vocab = backend.model().config().vocab_size;
        let detected = ReplyFormat::detect(template.source(), &tokenizer).calls;
        let compiler = GrammarCompiler::new(
            Arc::clone(&tokenizer),
            vocab,
            Arc::clone(&eos_token_ids),
            options.tool_call_format.unwrap_or(detected),
        );
        let inner = Inner {
            backend,
            tokenizer,
            template,
            defaults,
            eos_token_ids,
            compiler: Arc::new(compiler),
            options,
            active: RwLock::new(base),
            files: OnceLock::new(),
            replicas,
            dispatcher,
            load,
            threads,
            remote_backend: OnceLock::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(crate) fn engine_load(&self) -> Arc<EngineLoad> {
        Arc::clone(&self.inner.load)
    }

    /// The backend that runs the model; it also scores and trains.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// [`Backend::score`] under a version.
    ///
    /// # Errors
    /// As [`Backend::score`].
    pub fn score(
        &self,
        version: &LoadedVersion,
        sequences: &[crate::backend::Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        version.score(&**self.backend(), sequences)
    }

    /// The base model in host memory.
    pub fn model(&self) -> &Arc<Model> {
        self.inner.backend.model()
    }

    fn config(&self) -> &ModelConfig {
        self.model().config()
    }

    /// The checkpoint files; `None` if the engine was started from parts.
    pub fn files(&self) -> Option<&ModelFiles> {
        self.inner.files.get()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.inner.tokenizer
    }

    /// The chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.inner.template
    }

    /// Reasoning and tool-call formats: from the options, else detected from the chat template.
    pub fn reply_format(&self) -> ReplyFormat {
        let detected = ReplyFormat::detect(self.template().source(), self.tokenizer());
        ReplyFormat {
            calls: self
                .inner
                .options
                .tool_call_format
                .unwrap_or(detected.calls),
            reasoning: self
                .inner
                .options
                .reasoning_format
                .unwrap_or(detected.reasoning),
        }
    }

    /// Default sampling parameters.
    pub fn defaults(&self) -> &SamplingParams {
        &self.inner.defaults
    }

    /// The options the engine was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// Maximum context length in tokens, prompt and reply.
    pub fn context(&self) -> usize {
        let model_context = self.backend().max_model_len();
        self.inner
            .options
            .max_model_len
            .map_or(model_context, |limit| limit.min(model_context))
    }

    /// Maximum tokens of one request, prompt and reply: limited by the context length and the KV cache.
    pub fn max_request_tokens(&self) -> usize {
        self.context().min(self.kv_cache_tokens())
    }

    /// Tokens that the KV cache holds.
    pub fn kv_cache_tokens(&self) -> usize {
        kv_cache_tokens(&**self.backend(), self.options())
    }

    /// Whether the engine rejects new requests because it is shutting down.
    pub fn is_shutting_down(&self) -> bool {
        let queue = &self.inner.replicas[0].waiting_queue;
        queue.lock().shutdown_deadline().is_some()
    }

    /// Tokens with which the model ends a reply.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.inner.eos_token_ids
    }

    /// The active version, which new requests should use.
    pub fn active(&self) -> LoadedVersion {
        self.inner
            .active
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Generates with a remote backend from now on; the local model still scores and trains. Call it once, before the
    /// first request; later calls have no effect.
    pub fn set_remote_backend(&self, backend: Arc<dyn RemoteBackend>) {
        let inner = Arc::downgrade(&self.inner);
        if self.inner.remote_backend.set(Arc::clone(&backend)).is_ok() {
            backend.attach(Box::new(move |version| {
                if let Some(inner) = inner.upgrade() {
                    inner.activate(version);
                }
            }));
        }
    }

    /// Checks that requests can be served now.
    ///
    /// # Errors
    /// The reason they cannot; only with a remote backend.
    pub fn ready(&self) -> Result<(), String> {
        let backend = self.inner.remote_backend.get();
        backend.map_or(Ok(()), |backend| backend.ready())
    }

    /// Whether the local scheduler generates, not a remote backend.
    pub fn generates_locally(&self) -> bool {
        self.inner.remote_backend.get().is_none()
    }

    /// Statistics as of the last step.
    pub fn stats(&self) -> EngineStats {
        if let Some(backend) = self.inner.remote_backend.get() {
            return backend.stats();
        }
        let mut stats = EngineStats::default();
        for replica in &self.inner.replicas {
            stats.add(&replica.stats());
        }
        stats.yielding_threads = self.inner.load.waiting();
        stats
    }

    /// Begins shutdown: rejects new requests; running and waiting ones may finish within
    /// [`EngineOptions::shutdown_grace`] and fail after it. Returns at once; see [`Engine::wait_until_stopped`].
    pub fn shutdown(&self) {
        self.inner.close();
    }

    /// Waits until the engine has shut down.
    pub async fn wait_until_stopped(&self) {
        self.stopped_signal().await;
    }

    /// [`Engine::wait_until_stopped`] as a future that holds no handle, so that it does not keep the engine alive.
    pub fn stopped_signal(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut threads = self.inner.threads.clone();
        async move {
            // An error means that the engine threads are gone, which ends the wait as well.
            let _gone = threads.wait_for(|threads| *threads == 0).await;
        }
    }
}

/// Starts the engine thread of a replica.
fn start_replica(
    replica: usize,
    scheduler: Scheduler,
    load: &Arc<EngineLoad>,
    running: &Arc<watch::Sender<usize>>,
) -> Replica {
    let waiting_queue = Arc::new(WaitingQueue::default());
    let stats = Arc::new(Mutex::new(scheduler.stats.clone()));
    let core = EngineCore {
        replica,
        scheduler,
        waiting_queue: Arc::clone(&waiting_queue),
        stats: Arc::clone(&stats),
        load: Arc::clone(load),
        running: RunningThread::new(running),
    };
    let thread = std::thread::Builder::new().name("clawhost-engine".to_owned());
    if let Err(error) = thread.spawn(move || core.run()) {
        // Without its thread the replica rejects every request, which callers can report.
        tracing::error!(%error, "cannot start an engine thread");
        waiting_queue.begin_shutdown(std::time::Duration::ZERO);
    }
    Replica {
        waiting_queue,
        stats,
    }
}
