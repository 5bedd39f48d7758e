//! The engine's other end: takes requests on, brings versions to the server, and notices when the server goes and
//! comes back.
//!
//! It has a small runtime of its own, so that it can be asked from any thread. While the server is away requests are
//! refused with that reason; once it answers again its weights are compared anew, the adapters that are held here are
//! loaded again, and a version that could not be released meanwhile is released and made active.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use clawhost_policy::{
    Activate, Adapter, Elsewhere, Engine, EngineStats, GenerateRequest, Learned, LoraSpec, Refused,
    Reply, Served,
};
use reqwest::Response;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore, watch};

use crate::adapters::{Adapters, Unserved};
use crate::calls::Calls;
use crate::error::RemoteError;
use crate::http::{Server, Trouble};
use crate::meaning::Reports;
use crate::options::RemoteOptions;
use crate::probe::{Found, probe, same_weights};
use crate::replying::{Outcome, Replying};
use crate::wire::Asked;

/// Replies that are scored here at once: each takes all the threads of the model.
const SCORING: usize = 1;
/// What replies are asked to for comparing.
const TEXT: &str = "Two programs continue this text with the same words, so that what they find of each word can be compared:";

/// A server that generates with the weights that are loaded here.
#[derive(Debug)]
pub struct Remote {
    shared: Arc<Shared>,
    /// None once it is being dropped.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    calls: Arc<Calls>,
    found: Found,
    adapters: Adapters,
    activate: OnceLock<Holder>,
    /// Why the server cannot be asked at the moment.
    gone: Mutex<Option<String>>,
    /// The version that is to be active once it can be released.
    wanted: Mutex<Option<Served>>,
    /// Rung when the server is in doubt.
    doubt: Notify,
    closing: AtomicBool,
    cut: watch::Sender<bool>,
    scoring: Arc<Semaphore>,
    counts: Counts,
}

struct Holder(Activate);

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Activate")
    }
}

#[derive(Debug, Default)]
struct Counts {
    running: AtomicUsize,
    finished: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
    tokens: AtomicU64,
    cached: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Asks a server whether it can stand in for the batcher of `engine`. Blocks until it has answered.
    ///
    /// # Errors
    /// Why it cannot, with what would mend it.
    pub fn connect(options: RemoteOptions, engine: &Engine) -> Result<Arc<Self>, RemoteError> {
        let server = Server::new(&options)?;
        let trouble = |reason: String| RemoteError::Trouble {
            url: options.url.clone(),
            reason,
        };
        let mut prompt = engine
            .tokenizer()
            .encode(TEXT)
            .map_err(|error| trouble(error.to_string()))?;
        prompt.truncate((engine.context() / 2).max(1));
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("clawhost-remote")
            .enable_all()
            .build()
            .map_err(|error| trouble(error.to_string()))?;
        let lora = options.lora.clone();
        let calls = Arc::new(Calls {
            server,
            model: Arc::clone(engine.model()),
            prompt,
            options,
        });
        let asked = Arc::clone(&calls);
        let (found, adapters) = wait(&runtime, async move {
            let found = probe(&asked).await?;
            let adapters = Adapters::default();
            if let Some(lora) = lora {
                try_adapter(&asked, &adapters, lora, found.noise).await?;
            }
            Ok::<_, RemoteError>((found, adapters))
        })
        .unwrap_or_else(|| {
            Err(RemoteError::Trouble {
                url: calls.options.url.clone(),
                reason: "asking it broke off".to_owned(),
            })
        })?;
        let shared = Arc::new(Shared {
            calls,
            found,
            adapters,
            activate: OnceLock::new(),
            gone: Mutex::new(None),
            wanted: Mutex::new(None),
            doubt: Notify::new(),
            closing: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            scoring: Arc::new(Semaphore::new(SCORING)),
            counts: Counts::default(),
        });
        runtime.spawn(Arc::clone(&shared).look_after());
        tracing::info!(
            url = shared.calls.options.url,
            reports = ?found.reports,
            distance = found.noise,
            "a server elsewhere generates"
        );
        Ok(Arc::new(Self {
            shared,
            runtime: Some(runtime),
        }))
    }

    /// What the server's log-probs are of.
    pub fn reports(&self) -> Reports {
        self.shared.found.reports
    }

    /// Mean distance, in nats, of the server's log-probs from those of the weights here, when it was connected.
    pub fn distance(&self) -> f64 {
        self.shared.found.noise
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        wait(self.runtime.as_ref()?, work)
    }
}

/// Waits for work on a runtime, from inside another one as well. None when it broke off.
fn wait<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    runtime.spawn(async move {
        // Whoever waits is still there: nothing else is done with the receiver.
        let _sent = sender.send(work.await);
    });
    receiver.recv().ok()
}

/// Loads an adapter that changes nothing, and asks for tokens by its name.
async fn try_adapter(
    calls: &Calls,
    adapters: &Adapters,
    lora: LoraSpec,
    noise: f64,
) -> Result<(), RemoteError> {
    let adapter = Arc::new(Adapter::init(calls.model.config(), lora, 0));
    let learned = Learned::Lora(adapter);
    let served = Served {
        version: 0,
        digest: learned.digest(),
        learned: Some(learned),
    };
    let released = adapters.release(calls, &served, noise).await;
    drop(served);
    adapters.sweep(calls).await;
    released.map_err(|unserved| RemoteError::NoAdapters {
        url: calls.options.url.clone(),
        kind: calls.options.kind,
        reason: unserved.reason,
    })
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping it would wait, which a thread of another runtime must not.
            runtime.shutdown_background();
        }
    }
}

impl Elsewhere for Remote {
    fn attach(&self, activate: Activate) {
        // The engine does so once.
        let _second = self.shared.activate.set(Holder(activate));
    }

    fn begin(&self, request: GenerateRequest, reply: Reply) -> Result<(), Refused> {
        let shared = Arc::clone(&self.shared);
        if shared.closing.load(Ordering::Relaxed) {
            return Err(Refused::ShuttingDown);
        }
        if let Some(reason) = lock(&shared.gone).clone() {
            return Err(Refused::Unavailable(reason));
        }
        shared
            .found
            .reports
            .allows(&request.sampling)
            .map_err(Refused::Unsupported)?;
        let limit = shared.calls.options.max_running;
        let running = Running::one_more(&shared);
        if running.number > limit {
            let waiting = running.number - 1;
            return Err(Refused::Busy { waiting, limit });
        }
        let (accepted, answer) = std::sync::mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime else {
            return Err(Refused::ShuttingDown);
        };
        runtime.spawn(async move {
            let _running = running;
            match shared.open(&request, &reply).await {
                Ok(response) => {
                    let _waits = accepted.send(Ok(()));
                    shared.reply(request, reply, response).await;
                }
                Err(refused) => {
                    let _waits = accepted.send(Err(refused));
                }
            }
        });
        answer.recv().unwrap_or(Err(Refused::ShuttingDown))
    }

    fn release(&self, served: &Served) -> Result<(), String> {
        let (shared, served) = (Arc::clone(&self.shared), served.clone());
        self.run(async move {
            *lock(&shared.wanted) = None;
            let released = shared.release(&served).await;
            if let Err(unserved) = &released
                && unserved.later
            {
                *lock(&shared.wanted) = Some(served);
                shared.lost(unserved.reason.clone());
            }
            released.map_err(|unserved| unserved.reason)
        })
        .unwrap_or_else(|| Err("the engine is shutting down".to_owned()))
    }

    fn ready(&self) -> Result<(), String> {
        lock(&self.shared.gone).clone().map_or(Ok(()), Err)
    }

    fn stats(&self) -> EngineStats {
        let counts = &self.shared.counts;
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
        self.shared.closing.store(true, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                shared.cut.send_replace(true);
            });
        }
    }
}

/// One of the requests that are at the server.
struct Running {
    shared: Arc<Shared>,
    number: usize,
}

impl Running {
    fn one_more(shared: &Arc<Shared>) -> Self {
        let number = shared.counts.running.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            shared: Arc::clone(shared),
            number,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.counts.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Asks for a reply. Nothing has been received when it fails, so asking again is safe.
    async fn open(&self, request: &GenerateRequest, reply: &Reply) -> Result<Response, Refused> {
        match self.ask(request, reply).await? {
            Err((trouble, Some(name))) if trouble.may_lack_adapter() => {
                // The server was started anew, or has dropped the adapter for want of room.
                self.adapters.forget(&name);
                let again = self.ask(request, reply).await?;
                again.map_err(|(trouble, _)| self.refusal(&trouble))
            }
            other => other.map_err(|(trouble, _)| self.refusal(&trouble)),
        }
    }

    /// The outer error: there is no adapter to ask by.
    async fn ask(
        &self,
        request: &GenerateRequest,
        reply: &Reply,
    ) -> Result<Result<Response, (Trouble, Option<String>)>, Refused> {
        let calls = &self.calls;
        let name = self.adapters.ensure(calls, &request.served).await;
        let name = name.map_err(|unserved| {
            if unserved.later {
                self.lost(unserved.reason.clone());
            }
            Refused::Unavailable(unserved.reason)
        })?;
        let asked = Asked {
            model: name.as_deref().unwrap_or(&calls.options.model),
            is_adapter: name.is_some(),
            prompt: &request.prompt,
            sampling: &request.sampling,
            ends: reply.ends(),
            room: reply.room(),
        };
        let kind = calls.options.kind;
        let answer = calls.server.post(kind.path(), &kind.body(&asked)).await;
        Ok(answer.map_err(|trouble| (trouble, name)))
    }

    fn refusal(&self, trouble: &Trouble) -> Refused {
        let url = &self.calls.options.url;
        let reason =
            format!("the server that generates, {url}, did not take the request: {trouble}");
        match trouble {
            Trouble::Busy { retry_after_s, .. } => Refused::Overloaded {
                reason,
                retry_after_s: *retry_after_s,
            },
            Trouble::Refused { status: 400, .. } | Trouble::Refused { status: 422, .. } => {
                Refused::Unsupported(reason)
            }
            trouble => {
                if trouble.is_gone() {
                    self.lost(reason.clone());
                }
                Refused::Unavailable(reason)
            }
        }
    }

    async fn reply(&self, request: GenerateRequest, reply: Reply, answer: Response) {
        let replying = Replying {
            calls: Arc::clone(&self.calls),
            reports: self.found.reports,
            request,
            reply,
            cut: self.cut.subscribe(),
            scoring: Arc::clone(&self.scoring),
        };
        let (outcome, written) = replying.run(answer).await;
        let counts = &self.counts;
        let tokens = u64::try_from(written.ids.len()).unwrap_or(u64::MAX);
        let cached = u64::try_from(written.cached).unwrap_or(u64::MAX);
        counts.tokens.fetch_add(tokens, Ordering::Relaxed);
        counts.cached.fetch_add(cached, Ordering::Relaxed);
        let count = match outcome {
            Outcome::Finished => &counts.finished,
            Outcome::Cancelled => &counts.cancelled,
            Outcome::Failed => {
                // A connection that breaks may be the first sign that the server has gone.
                self.doubt.notify_one();
                &counts.failed
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    async fn release(&self, served: &Served) -> Result<(), Unserved> {
        self.adapters
            .release(&self.calls, served, self.found.noise)
            .await?;
        self.adapters.sweep(&self.calls).await;
        Ok(())
    }

    /// The server does not answer.
    fn lost(&self, reason: String) {
        let first = lock(&self.gone).replace(reason.clone()).is_none();
        if first {
            tracing::error!(reason, "the server that generates is away");
            self.doubt.notify_one();
        }
    }

    /// Until the runtime ends: looks whether the server is there, and unloads what nobody needs.
    async fn look_after(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.calls.options.look) => {}
                () = self.doubt.notified() => {}
            }
            let away = lock(&self.gone).is_some();
            match self.calls.server.health().await {
                // Somebody answers, if not to this question.
                Ok(()) | Err(Trouble::Refused { status: 404, .. }) if away => {
                    match self.take_up().await {
                        Ok(()) => {
                            *lock(&self.gone) = None;
                            tracing::info!("the server that generates is back");
                        }
                        Err(reason) => {
                            lock(&self.gone).replace(reason);
                        }
                    }
                }
                Err(trouble) if trouble.is_gone() => {
                    let url = &self.calls.options.url;
                    self.lost(format!(
                        "the server that generates, {url}, does not answer: {trouble}"
                    ));
                }
                _ => {}
            }
            if lock(&self.gone).is_none() {
                self.adapters.sweep(&self.calls).await;
            }
            if away && lock(&self.gone).is_some() {
                // Not in a circle when requests ring meanwhile.
                tokio::time::sleep(self.calls.options.look).await;
            }
        }
    }

    /// Makes sure that a server that answers again is the one that went, and brings it what it has to have.
    async fn take_up(&self) -> Result<(), String> {
        same_weights(&self.calls)
            .await
            .map_err(|error| error.to_string())?;
        let loaded = self.adapters.again(&self.calls).await;
        loaded.map_err(|unserved| unserved.reason)?;
        let wanted = lock(&self.wanted).clone();
        if let Some(served) = wanted {
            match self.release(&served).await {
                Ok(()) => {
                    // Unless something else was released meanwhile.
                    let still = lock(&self.wanted).take();
                    if let (Some(served), Some(activate)) = (still, self.activate.get()) {
                        tracing::info!(
                            version = served.version,
                            "released, now that the server is back"
                        );
                        (activate.0)(served);
                    }
                }
                Err(unserved) if unserved.later => return Err(unserved.reason),
                Err(unserved) => {
                    tracing::error!(
                        version = served.version,
                        reason = unserved.reason,
                        "a version was not released"
                    );
                    *lock(&self.wanted) = None;
                }
            }
        }
        Ok(())
    }
}
