//! The engine's other end: takes requests on and brings versions to the server.
//!
//! It has a small runtime of its own, so that it can be asked from any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use clawhost_policy::{
    Activate, Adapter, Elsewhere, Engine, EngineStats, GenerateRequest, Learned, LoraSpec, Refused,
    Reply, Served,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore, watch};

use crate::adapters::Adapters;
use crate::calls::Calls;
use crate::error::RemoteError;
use crate::http::Server;
use crate::keeping::{Counts, Holder, Running, Shared, lock};
use crate::meaning::Reports;
use crate::options::RemoteOptions;
use crate::probe::probe;
use crate::wire::untold;

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
            .and_then(|()| untold(&request.sampling))
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
