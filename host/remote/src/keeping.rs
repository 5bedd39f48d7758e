//! The state of a server in use: whether it is there, what it has, which requests are at it.
//!
//! While it is away requests are refused with that reason; once it answers again its weights are compared anew, the
//! adapters that are held here are loaded again, and a version that could not be released meanwhile is released and
//! made active.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use clawhost_policy::{Activate, GenerateRequest, Refused, Reply, Served};
use reqwest::Response;
use tokio::sync::{Notify, Semaphore, watch};

use crate::adapters::{Adapters, Unserved};
use crate::calls::Calls;
use crate::http::Trouble;
use crate::probe::{Found, same_weights};
use crate::replying::{Outcome, Replying};
use crate::wire::Asked;

/// What requests and the one who looks after the server have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) calls: Arc<Calls>,
    pub(crate) found: Found,
    pub(crate) adapters: Adapters,
    pub(crate) activate: OnceLock<Holder>,
    /// Why the server cannot be asked at the moment.
    pub(crate) gone: Mutex<Option<String>>,
    /// The version that is to be active once it can be released.
    pub(crate) wanted: Mutex<Option<Served>>,
    /// Rung when the server is in doubt.
    pub(crate) doubt: Notify,
    pub(crate) closing: AtomicBool,
    pub(crate) cut: watch::Sender<bool>,
    pub(crate) scoring: Arc<Semaphore>,
    pub(crate) counts: Counts,
}

/// The engine's way of activating a version.
pub(crate) struct Holder(pub(crate) Activate);

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Activate")
    }
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) running: AtomicUsize,
    pub(crate) finished: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) tokens: AtomicU64,
    pub(crate) cached: AtomicU64,
}

/// What a panic elsewhere left behind is still whole: each value is replaced at once.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of the requests that are at the server.
pub(crate) struct Running {
    shared: Arc<Shared>,
    /// How many there are with it.
    pub(crate) number: usize,
}

impl Running {
    pub(crate) fn one_more(shared: &Arc<Shared>) -> Self {
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
    pub(crate) async fn open(
        &self,
        request: &GenerateRequest,
        reply: &Reply,
    ) -> Result<Response, Refused> {
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

    pub(crate) async fn reply(&self, request: GenerateRequest, reply: Reply, answer: Response) {
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

    pub(crate) async fn release(&self, served: &Served) -> Result<(), Unserved> {
        self.adapters
            .release(&self.calls, served, self.found.noise)
            .await?;
        self.adapters.sweep(&self.calls).await;
        Ok(())
    }

    /// The server does not answer.
    pub(crate) fn lost(&self, reason: String) {
        let first = lock(&self.gone).replace(reason.clone()).is_none();
        if first {
            tracing::error!(reason, "the server that generates is away");
            self.doubt.notify_one();
        }
    }

    /// Until the runtime ends: looks whether the server is there, and unloads what nobody needs.
    pub(crate) async fn look_after(self: Arc<Self>) {
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
