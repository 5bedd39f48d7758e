//! The handle that everyone else holds.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use tokio::sync::watch;

use super::batcher::{Batcher, Forward, memory_tokens};
use super::elsewhere::{Elsewhere, Reply};
use super::intake::Intake;
use super::options::EngineOptions;
use super::request::{GenerateRequest, Generation, Refused};
use super::sequence::Sequence;
use super::served::Served;
use super::stats::EngineStats;
use super::worker::Worker;
use crate::background::Load;
use crate::error::{ForwardError, LoadError};
use crate::files::ModelFiles;
use crate::learned::Learned;
use crate::model::{Model, Row};
use crate::sampling::{Compiler, Sampling, SamplingError};
use crate::text::{ChatTemplate, ReplyForm, Tokenizer, named_tokens};

/// A model that serves. Cloning it is cheap; the engine shuts down when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    defaults: Sampling,
    ends: Arc<[u32]>,
    /// Makes grammars of constraints.
    compiler: Arc<Compiler>,
    options: EngineOptions,
    active: RwLock<Served>,
    /// Where it was loaded from.
    files: OnceLock<ModelFiles>,
    intake: Arc<Intake>,
    stats: Arc<Mutex<EngineStats>>,
    /// Whether there are requests, for work that yields to them.
    load: Arc<Load>,
    stopped: watch::Receiver<bool>,
    /// What generates in the place of this process's own batcher.
    elsewhere: OnceLock<Arc<dyn Elsewhere>>,
}

impl Inner {
    fn activate(&self, served: Served) {
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *active, served);
        drop(active);
        // What was kept of a version goes with it, even while nothing runs.
        drop(before);
        self.intake.ring();
    }

    fn close(&self) {
        let grace = self.options.shutdown_grace;
        self.intake.close(grace);
        if let Some(elsewhere) = self.elsewhere.get() {
            elsewhere.close(grace);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// A version is not served; the one before it still is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("version {version} is not served: {reason}")]
pub struct NotReleased {
    /// The version.
    pub version: u64,
    /// Why not.
    pub reason: String,
}

impl Engine {
    /// Starts an engine on the base model.
    pub fn start(
        model: Arc<Model>,
        tokenizer: Arc<Tokenizer>,
        template: Arc<ChatTemplate>,
        options: EngineOptions,
    ) -> Self {
        let forward: Forward = Box::new(Model::forward);
        let ends = model.config().eos_token_ids.clone();
        Self::launch(
            model,
            tokenizer,
            template,
            (Sampling::default(), ends),
            options,
            forward,
        )
    }

    /// Loads a checkpoint and starts an engine on it. Sampling defaults and further tokens that end
    /// a reply come from `generation_config.json`, the special tokens that its chat template names from
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// What is missing or malformed, by file.
    pub fn load(files: &ModelFiles, options: EngineOptions) -> Result<Self, LoadError> {
        let malformed = |file: &str, reason: String| LoadError::Malformed {
            file: file.to_owned(),
            reason,
        };
        let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)
            .map_err(|error| malformed("tokenizer.json", error.to_string()))?;
        let mut model = Model::load(files)?;
        if options.threads > 0 {
            model = model.with_threads(options.threads);
        }
        let vocab = model.config().vocab_size;
        if tokenizer.vocab_size() > vocab {
            let size = tokenizer.vocab_size();
            let reason =
                format!("it has {size} tokens, the model {vocab}; they do not belong together");
            return Err(malformed("tokenizer.json", reason));
        }
        let mut ends = model.config().eos_token_ids.clone();
        let mut defaults = Sampling::default();
        if let Some(bytes) = files.generation() {
            let config: serde_json::Value = serde_json::from_slice(bytes)
                .map_err(|error| malformed("generation_config.json", error.to_string()))?;
            defaults = Sampling::from_generation_config(&config);
            let listed = config.get("eos_token_id");
            let one = listed.and_then(serde_json::Value::as_u64);
            let many = listed.and_then(serde_json::Value::as_array);
            let many = many
                .into_iter()
                .flatten()
                .filter_map(serde_json::Value::as_u64);
            ends.extend(
                one.into_iter()
                    .chain(many)
                    .filter_map(|id| u32::try_from(id).ok()),
            );
            ends.sort_unstable();
            ends.dedup();
        }
        let source = std::str::from_utf8(files.template()?)
            .map_err(|error| malformed("chat template", error.to_string()))?;
        // Of equal names the last counts: what the checkpoint says goes before what its ids suggest.
        let spelled = ends.first().and_then(|id| tokenizer.token(*id));
        let mut variables: Vec<_> = spelled
            .map(|token| ("eos_token".to_owned(), token))
            .into_iter()
            .collect();
        if let Some(bytes) = files.tokenizer_config() {
            let config = serde_json::from_slice(bytes)
                .map_err(|error| malformed("tokenizer_config.json", error.to_string()))?;
            variables.extend(named_tokens(&config));
        }
        let mut template = ChatTemplate::new(source, variables)
            .map_err(|error| malformed("chat template", error.to_string()))?;
        if let Some(bytes) = files.tool_template() {
            let source = std::str::from_utf8(bytes)
                .map_err(|error| malformed("chat template tool_use", error.to_string()))?;
            template = template
                .with_tool_template(source)
                .map_err(|error| malformed("chat template tool_use", error.to_string()))?;
        }
        let model = Arc::new(model);
        let forward: Forward = Box::new(Model::forward);
        let own = (defaults, ends);
        let engine = Self::launch(
            model,
            Arc::new(tokenizer),
            Arc::new(template),
            own,
            options,
            forward,
        );
        // Nobody else holds it yet, so this is the first value.
        let _first = engine.inner.files.set(files.clone());
        Ok(engine)
    }

    /// [`Engine::start`] with another forward pass, so that tests of other crates can see what a defect of the
    /// serving path leads to.
    #[doc(hidden)]
    pub fn start_with_forward(
        model: Arc<Model>,
        tokenizer: Arc<Tokenizer>,
        template: Arc<ChatTemplate>,
        options: EngineOptions,
        forward: impl FnMut(&Model, &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> + Send + 'static,
    ) -> Self {
        let ends = model.config().eos_token_ids.clone();
        Self::launch(
            model,
            tokenizer,
            template,
            (Sampling::default(), ends),
            options,
            Box::new(forward),
        )
    }

    pub(super) fn launch(
        model: Arc<Model>,
        tokenizer: Arc<Tokenizer>,
        template: Arc<ChatTemplate>,
        (defaults, ends): (Sampling, Vec<u32>),
        options: EngineOptions,
        forward: Forward,
    ) -> Self {
        model.prepare(None);
        let intake = Arc::new(Intake::default());
        let batcher = Batcher::new(Arc::clone(&model), forward, options.clone());
        let stats = Arc::new(Mutex::new(batcher.stats.clone()));
        let (stop, stopped) = watch::channel(false);
        let load = Arc::new(Load::default());
        let worker = Worker {
            batcher,
            intake: Arc::clone(&intake),
            stats: Arc::clone(&stats),
            load: Arc::clone(&load),
            stopped: stop,
        };
        let thread = std::thread::Builder::new().name("clawhost-engine".to_owned());
        if let Err(error) = thread.spawn(move || worker.run()) {
            // Without its thread the engine refuses everything, which its callers can report.
            tracing::error!(%error, "the engine's thread could not be started");
            intake.close(std::time::Duration::ZERO);
        }
        let base = Served::base(&model);
        let ends: Arc<[u32]> = ends.into();
        let vocab = model.config().vocab_size;
        let taught = ReplyForm::of(template.source(), &tokenizer).calls;
        let compiler = Compiler::new(
            Arc::clone(&tokenizer),
            vocab,
            Arc::clone(&ends),
            options.calls.unwrap_or(taught),
        );
        let inner = Inner {
            model,
            tokenizer,
            template,
            defaults,
            ends,
            compiler: Arc::new(compiler),
            options,
            active: RwLock::new(base),
            files: OnceLock::new(),
            intake,
            stats,
            load,
            stopped,
            elsewhere: OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub(crate) fn request_load(&self) -> Arc<Load> {
        Arc::clone(&self.inner.load)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.inner.model
    }

    /// The checkpoint's files; none when it was started from parts.
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

    /// How the model writes reasoning and tool calls: as its template teaches, unless the options say otherwise.
    pub fn reply_form(&self) -> ReplyForm {
        let taught = ReplyForm::of(self.template().source(), self.tokenizer());
        ReplyForm {
            calls: self.inner.options.calls.unwrap_or(taught.calls),
            reasoning: self.inner.options.reasoning.unwrap_or(taught.reasoning),
        }
    }

    /// Sampling options of requests that ask for nothing else.
    pub fn defaults(&self) -> &Sampling {
        &self.inner.defaults
    }

    /// The limits it was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// Tokens that the context holds, prompt and reply.
    pub fn context(&self) -> usize {
        let made_for = self.inner.model.config().max_position_embeddings;
        self.inner
            .options
            .context
            .map_or(made_for, |asked| asked.min(made_for))
    }

    /// Most tokens that a request can have here, prompt and reply: what context and KV cache hold.
    pub fn room(&self) -> usize {
        self.context()
            .min(memory_tokens(&self.inner.model, &self.inner.options))
    }

    /// Whether it refuses new requests because it shuts down.
    pub fn is_shutting_down(&self) -> bool {
        self.inner.intake.lock().closing().is_some()
    }

    /// Tokens that end a reply.
    pub fn end_tokens(&self) -> &[u32] {
        &self.inner.ends
    }

    /// The version that new requests should be made with.
    pub fn active(&self) -> Served {
        self.inner
            .active
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lets another program generate from now on; the model here scores and is trained. To be called once, before
    /// the first request; later calls change nothing.
    pub fn generate_elsewhere(&self, elsewhere: Arc<dyn Elsewhere>) {
        let inner = Arc::downgrade(&self.inner);
        if self.inner.elsewhere.set(Arc::clone(&elsewhere)).is_ok() {
            elsewhere.attach(Box::new(move |served| {
                if let Some(inner) = inner.upgrade() {
                    inner.activate(served);
                }
            }));
        }
    }

    /// Whether requests can be answered now.
    ///
    /// # Errors
    /// Why not: only where another program generates.
    pub fn ready(&self) -> Result<(), String> {
        let elsewhere = self.inner.elsewhere.get();
        elsewhere.map_or(Ok(()), |elsewhere| elsewhere.ready())
    }

    /// Makes a version the active one. With this process's own batcher that is at once; where another program
    /// generates it waits until that program serves the version, and says when it does not. Requests that are
    /// running or waiting keep theirs; nothing learned is the base model again.
    ///
    /// # Errors
    /// Where another program generates: why it does not serve it. The version before it stays active.
    pub fn release<L: Into<Learned>>(
        &self,
        version: u64,
        learned: Option<L>,
    ) -> Result<Served, NotReleased> {
        let served = self.version(version, learned.map(Into::into));
        if let Some(elsewhere) = self.inner.elsewhere.get() {
            elsewhere
                .release(&served)
                .map_err(|reason| NotReleased { version, reason })?;
        }
        self.inner.activate(served.clone());
        Ok(served)
    }

    /// [`Engine::release`] for whoever looks at what is served afterwards: what could not be released is logged,
    /// and what is active then is returned. Rows of all versions that share the base run together, each whole
    /// copy of the weights in a pass of its own.
    pub fn publish<L: Into<Learned>>(&self, version: u64, learned: Option<L>) -> Served {
        self.release(version, learned).unwrap_or_else(|error| {
            tracing::error!(%error, "a version was not released");
            self.active()
        })
    }

    /// Loads a version as [`Engine::release`] does, without making it active: it answers only requests that name
    /// it.
    pub fn candidate<L: Into<Learned>>(&self, version: u64, learned: L) -> Served {
        self.version(version, Some(learned.into()))
    }

    fn version(&self, version: u64, learned: Option<Learned>) -> Served {
        let digest = match &learned {
            Some(learned) => learned.digest(),
            None => self.inner.model.digest().to_owned(),
        };
        let served = Served {
            version,
            digest,
            learned,
        };
        // On this thread's time, so that no step of the engine waits for it.
        let model = served.model(&self.inner.model);
        model.prepare(served.adapter().map(Arc::as_ref));
        served
    }

    /// Queues a request. Its reply is cut where the context or the attention memory ends, whatever `max_tokens` says.
    /// A constraint that is new to the engine is compiled first, on this thread's time: milliseconds, seconds at
    /// worst.
    ///
    /// # Errors
    /// When the request cannot be taken on, before anything was done for it.
    pub fn generate(&self, request: GenerateRequest) -> Result<Generation, Refused> {
        self.enqueue(request, Arc::clone(&self.inner.ends), true, None)
    }

    /// [`Engine::generate`] of a reply that only `max_tokens` ends and that shares nothing with
    /// others, for measuring.
    pub(super) fn generate_apart(&self, request: GenerateRequest) -> Result<Generation, Refused> {
        self.enqueue(request, Arc::new([]), false, None)
    }

    /// [`Engine::generate`] in this process, whatever generates elsewhere, of a reply that takes its tokens from a
    /// record and ends with it.
    pub(super) fn generate_recorded(
        &self,
        request: GenerateRequest,
        reply: Arc<[u32]>,
    ) -> Result<Generation, Refused> {
        self.enqueue(request, Arc::new([]), true, Some(reply))
    }

    /// Whether this process generates, and not another program.
    pub fn generates_here(&self) -> bool {
        self.inner.elsewhere.get().is_none()
    }

    fn enqueue(
        &self,
        request: GenerateRequest,
        ends: Arc<[u32]>,
        shares: bool,
        recorded: Option<Arc<[u32]>>,
    ) -> Result<Generation, Refused> {
        let GenerateRequest {
            prompt, sampling, ..
        } = &request;
        let max = self.context();
        if prompt.len() >= max {
            return Err(Refused::ContextTooLong {
                prompt: prompt.len(),
                max,
            });
        }
        if prompt.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        let vocab = self.inner.model.config().vocab_size;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(Refused::UnknownToken { id: *id, vocab });
        }
        sampling.validate()?;
        sampling.validate_tokens(vocab)?;
        let tokenizer = Arc::clone(&self.inner.tokenizer);
        let elsewhere = self.inner.elsewhere.get();
        if let Some(elsewhere) = elsewhere.filter(|_| shares && recorded.is_none()) {
            // Whoever generates there follows the constraint as well.
            let mut request = request;
            let ends = request.sampling.endings(ends);
            let (reply, generation) = Reply::new(&mut request, ends, max, tokenizer);
            elsewhere.begin(request, reply)?;
            return Ok(generation);
        }
        let memory = memory_tokens(&self.inner.model, &self.inner.options);
        if request.prompt.len() >= memory {
            return Err(Refused::MemoryTooSmall {
                prompt: request.prompt.len(),
                max: memory,
            });
        }
        let banned = banned(&tokenizer, &request.sampling.bad_words)?;
        let constraint = request.sampling.constraint.as_ref();
        let guide = constraint.map(|form| self.inner.compiler.guide(form));
        let (mut sequence, generation) = Sequence::new(
            request,
            ends,
            guide.transpose()?,
            max.min(memory),
            tokenizer,
        );
        sequence.shares = shares;
        sequence.sampler.ban(banned);
        if let Some(recorded) = recorded {
            sequence.sampler = sequence.sampler.replaying(recorded);
        }
        self.inner
            .intake
            .push(sequence, self.inner.options.max_waiting)?;
        Ok(generation)
    }

    /// What it has done and what it is doing, as of the last step.
    pub fn stats(&self) -> EngineStats {
        if let Some(elsewhere) = self.inner.elsewhere.get() {
            return elsewhere.stats();
        }
        let mut stats = self
            .inner
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        stats.waiting = self.inner.intake.lock().waiting();
        stats.yielding = self.inner.load.waiting();
        stats
    }

    /// Begins to shut down: new requests are refused, running and waiting ones may finish within
    /// [`EngineOptions::shutdown_grace`] and fail after it. Returns at once; see
    /// [`Engine::stopped`].
    pub fn shutdown(&self) {
        self.inner.close();
    }

    /// Waits until the engine has shut down.
    pub async fn stopped(&self) {
        self.stopping().await;
    }

    /// [`Engine::stopped`] that does not keep the engine from shutting down for want of handles.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopped = self.inner.stopped.clone();
        async move {
            // An error means that the thread is gone, which is what is waited for.
            let _gone = stopped.wait_for(|stopped| *stopped).await;
        }
    }
}

/// The tokens of words that a reply is kept from, at the beginning of a text and behind a space.
fn banned(tokenizer: &Tokenizer, words: &[String]) -> Result<Vec<Vec<u32>>, SamplingError> {
    let mut sequences = Vec::new();
    for word in words {
        for text in [
            word.trim_start().to_owned(),
            format!(" {}", word.trim_start()),
        ] {
            let tokens = tokenizer.encode(&text).map_err(|_| SamplingError {
                field: "bad_words",
                value: word.clone(),
                allowed: "words that the tokenizer can spell",
            })?;
            sequences.push(tokens);
        }
    }
    sequences.sort_unstable();
    sequences.dedup();
    Ok(sequences)
}
