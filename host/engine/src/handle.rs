//! The engine handle: loading, submitting requests, publishing versions, shutdown.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use tokio::sync::watch;

use super::checkpoint_files::CheckpointFiles;
use super::dispatch::Dispatcher;
use super::engine_core::{EngineCore, RunningThread};
use super::loaded_version::LoadedVersion;
use super::options::EngineOptions;
use super::remote_backend::{RemoteBackend, TokenSink};
use super::request::{GenerateRequest, Generation, SubmitError};
use super::scheduler::{Scheduler, kv_cache_tokens};
use super::sequence::Sequence;
use super::stats::EngineStats;
use super::waiting_queue::WaitingQueue;
use crate::backend::{Backend, ForwardError, SequenceScores};
use crate::engine_load::EngineLoad;
use crate::sampling::{GrammarCompiler, SamplingError, SamplingParams};
use clawhost_chat::{ChatTemplate, ReplyFormat, Tokenizer};
use clawhost_model::{LoadError, Model, ModelConfig, ModelFiles, TrainedWeights};

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

/// A version could not be published; the previous one stays active.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot publish version {version}: {reason}")]
pub struct PublishError {
    /// The version.
    pub version: u64,
    /// The reason.
    pub reason: String,
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
        self.context()
            .min(kv_cache_tokens(&**self.backend(), self.options()))
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

    /// Publishes a version: makes it the active one. Immediate with the local scheduler; with a remote backend it waits
    /// until that server serves the version. Running and waiting requests keep their version. `None` publishes the base
    /// model.
    ///
    /// # Errors
    /// The backend cannot load the weights; with a remote backend: why it does not serve the version. The previous version
    /// stays active.
    pub fn try_publish<L: Into<TrainedWeights>>(
        &self,
        version: u64,
        weights: Option<L>,
    ) -> Result<LoadedVersion, PublishError> {
        let loaded = self.load_version(version, weights.map(Into::into))?;
        if let Some(backend) = self.inner.remote_backend.get() {
            backend
                .load_version(&loaded)
                .map_err(|reason| PublishError { version, reason })?;
        }
        self.inner.activate(loaded.clone());
        Ok(loaded)
    }

    /// [`Engine::try_publish`] that logs a failure and returns the version that is active afterwards. Rows of all
    /// versions that share the base model run in one pass; each full copy of the weights runs in its own.
    pub fn publish<L: Into<TrainedWeights>>(
        &self,
        version: u64,
        weights: Option<L>,
    ) -> LoadedVersion {
        self.try_publish(version, weights).unwrap_or_else(|error| {
            tracing::error!(%error, "the version before it stays active");
            self.active()
        })
    }

    /// Loads a version without publishing it: only requests that name it use it.
    ///
    /// # Errors
    /// The backend cannot load the weights.
    pub fn load_candidate<L: Into<TrainedWeights>>(
        &self,
        version: u64,
        weights: L,
    ) -> Result<LoadedVersion, PublishError> {
        self.load_version(version, Some(weights.into()))
    }

    fn load_version(
        &self,
        version: u64,
        weights: Option<TrainedWeights>,
    ) -> Result<LoadedVersion, PublishError> {
        let mut loaded = match weights {
            Some(weights) => LoadedVersion::new(version, weights),
            None => LoadedVersion::base_as(version, self.model()),
        };
        // On this thread, so that no engine step waits for it.
        loaded.load(self.backend()).map_err(|error| PublishError {
            version,
            reason: error.to_string(),
        })?;
        Ok(loaded)
    }

    /// Submits a request. Its reply ends at the maximum context length or at the end of the KV cache, whatever
    /// `max_tokens` is. A constraint that is not compiled yet is compiled first, on this thread: milliseconds, seconds
    /// at worst.
    ///
    /// # Errors
    /// Why the request is rejected. None of it has run.
    pub fn generate(&self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        self.enqueue(request, Arc::clone(&self.inner.eos_token_ids), true, None)
    }

    /// [`Engine::generate`] without the KV cache of earlier requests. Where rounding depends on the shape of a step
    /// ([`crate::Backend::is_batch_invariant`]), such a request gets the same reply each time that it runs alone.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_uncached(&self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        if !self.generates_locally() {
            return self.generate(request);
        }
        self.enqueue(request, Arc::clone(&self.inner.eos_token_ids), false, None)
    }

    /// [`Engine::generate`] of a reply that only `max_tokens` ends, without prefix sharing, for benchmarks.
    pub(super) fn generate_unshared(
        &self,
        request: GenerateRequest,
    ) -> Result<Generation, SubmitError> {
        self.enqueue(request, Arc::new([]), false, None)
    }

    /// [`Engine::generate`] with the local scheduler, even if a remote backend is set, of a reply that takes its tokens
    /// from a record.
    pub(super) fn generate_recorded(
        &self,
        request: GenerateRequest,
        reply: Arc<[u32]>,
    ) -> Result<Generation, SubmitError> {
        self.enqueue(request, Arc::new([]), true, Some(reply))
    }

    /// Whether the local scheduler generates, not a remote backend.
    pub fn generates_locally(&self) -> bool {
        self.inner.remote_backend.get().is_none()
    }

    fn enqueue(
        &self,
        request: GenerateRequest,
        eos_token_ids: Arc<[u32]>,
        shares_prefix: bool,
        recorded: Option<Arc<[u32]>>,
    ) -> Result<Generation, SubmitError> {
        let GenerateRequest {
            prompt, sampling, ..
        } = &request;
        let max = self.context();
        if prompt.len() >= max {
            return Err(SubmitError::ContextTooLong {
                prompt: prompt.len(),
                max,
            });
        }
        if prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let vocab = self.config().vocab_size;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(SubmitError::UnknownToken { id: *id, vocab });
        }
        sampling.validate()?;
        sampling.validate_tokens(vocab)?;
        let tokenizer = Arc::clone(&self.inner.tokenizer);
        let backend = self.inner.remote_backend.get();
        if let Some(backend) = backend.filter(|_| shares_prefix && recorded.is_none()) {
            // The remote server enforces the constraint as well.
            let mut request = request;
            let eos_token_ids = request.sampling.stop_tokens(eos_token_ids);
            let (sink, generation) = TokenSink::new(&mut request, eos_token_ids, max, tokenizer);
            backend.submit(request, sink)?;
            return Ok(generation);
        }
        let capacity = kv_cache_tokens(&**self.backend(), self.options());
        if request.prompt.len() >= capacity {
            return Err(SubmitError::KvCacheTooSmall {
                prompt: request.prompt.len(),
                max: capacity,
            });
        }
        let banned = banned_sequences(&tokenizer, &request.sampling.bad_words)?;
        let constraint = request.sampling.constraint.as_ref();
        let grammar = constraint.map(|constraint| self.inner.compiler.matcher(constraint));
        let mut request = request;
        request
            .version
            .load(self.backend())
            .map_err(|error| SubmitError::Unavailable(error.to_string()))?;
        let (mut sequence, generation) = Sequence::new(
            request,
            eos_token_ids,
            grammar.transpose()?,
            max.min(capacity),
            tokenizer,
        );
        sequence.shares_prefix = shares_prefix;
        let sampler = sequence.sampler.as_mut();
        let sampler = sampler.expect("the request is not admitted yet");
        (sampler.banned, sampler.recorded) = (banned, recorded);
        self.dispatch(sequence)?;
        Ok(generation)
    }

    /// Gives a request to a replica.
    fn dispatch(&self, mut sequence: Sequence) -> Result<(), SubmitError> {
        let (version, prompt) = (sequence.version.version, &sequence.tokens);
        let dispatcher = &self.inner.dispatcher;
        let (replica, dispatched) = dispatcher.dispatch(version, prompt, sequence.shares_prefix);
        sequence.dispatched = Some(dispatched);
        let queues = self.inner.replicas.iter().map(|one| &one.waiting_queue);
        let others = queues.enumerate().filter(|(index, _)| *index != replica);
        let priority = sequence.priority;
        let elsewhere = others.map(|(_, queue)| queue.lock().waiting_with(priority));
        let elsewhere = elsewhere.sum();
        let limit = self.inner.options.max_waiting_requests;
        let queue = &self.inner.replicas[replica].waiting_queue;
        queue.push(sequence, limit, elsewhere)
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

/// Token sequences of banned words, at the start of a text and after a space.
fn banned_sequences(
    tokenizer: &Tokenizer,
    words: &[String],
) -> Result<Vec<Vec<u32>>, SamplingError> {
    let mut sequences = Vec::new();
    for word in words {
        for text in [
            word.trim_start().to_owned(),
            format!(" {}", word.trim_start()),
        ] {
            let tokens = tokenizer.encode(&text).map_err(|_| SamplingError {
                field: "bad_words",
                value: word.clone(),
                allowed: "words that the tokenizer can encode",
            })?;
            sequences.push(tokens);
        }
    }
    sequences.sort_unstable();
    sequences.dedup();
    Ok(sequences)
}
