//! The DevTools protocol over a pipe: messages are JSON that ends with a zero byte.
//!
//! The connection answers requests of pages, dialogs and file choosers itself, whatever the caller is doing, because the page
//! waits for the answer. What else happens is kept as [`Status`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::pages::PageSet;
use crate::error::SandboxError;

/// How long the browser may take for a command.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest message.
const MAX_MESSAGE: usize = 64 << 20;
/// Dialogs that are remembered.
const MAX_DIALOGS: usize = 8;

/// What has happened in the page.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    /// The main frame; its loading is watched.
    pub(super) main_frame: String,
    /// Whether the main frame is loading.
    pub(super) loading: bool,
    /// Whether the page's process has crashed.
    pub(super) crashed: bool,
    /// Texts of the dialogs since they were last taken.
    pub(super) dialogs: Vec<String>,
    /// The data of a drag that began, for its drop.
    pub(super) drag: Option<Value>,
}

/// What the browser answers to a command: its result, or the text of its error.
type Answer = Result<Value, String>;

/// A connection. Dropping it closes the pipe.
pub(super) struct Cdp {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
    tasks: [JoinHandle<()>; 2],
}

struct Shared {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    next: AtomicU64,
    /// None once the pipe is closed.
    pending: Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>,
    /// Of the page, once it is attached.
    session: Mutex<Option<String>>,
    status: watch::Sender<Status>,
    pages: PageSet,
}

/// A command whose answer has not been waited for.
pub(super) struct Sent {
    method: String,
    answer: oneshot::Receiver<Answer>,
    status: watch::Receiver<Status>,
}

impl Cdp {
    pub(super) fn new(stream: UnixStream, pages: PageSet) -> Self {
        let (read, write) = stream.into_split();
        let (outgoing, queue) = mpsc::unbounded_channel();
        let (sender, status) = watch::channel(Status::default());
        let shared = Arc::new(Shared {
            outgoing,
            next: AtomicU64::new(1),
            pending: Mutex::new(Some(HashMap::new())),
            session: Mutex::new(None),
            status: sender,
            pages,
        });
        let tasks = [
            tokio::spawn(send_all(write, queue)),
            tokio::spawn(receive_all(read, Arc::clone(&shared))),
        ];
        Self {
            shared,
            status,
            tasks,
        }
    }

    /// Sends the commands from now on to the page of this session, whose main frame is `frame`.
    pub(super) fn attach(&self, session: &str, frame: &str) {
        *lock(&self.shared.session) = Some(session.to_owned());
        self.update(|status| frame.clone_into(&mut status.main_frame));
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Status)) {
        self.shared.status.send_modify(change);
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the main frame is not loading, for at most `timeout`.
    pub(super) async fn wait_until_loaded(&self, timeout: Duration) {
        let mut status = self.status.clone();
        let loaded = status.wait_for(|status| !status.loading || status.crashed);
        // The page is observed as it is after the time-out.
        let _ = tokio::time::timeout(timeout, loaded).await;
    }

    /// Sends a command without waiting for its answer.
    pub(super) fn send(&self, method: &str, params: Value) -> Sent {
        Sent {
            method: method.to_owned(),
            answer: self.shared.send(method, params),
            status: self.status.clone(),
        }
    }

    /// Sends a command and returns its result, or the text of the browser's error.
    ///
    /// # Errors
    /// The browser has ended or does not answer.
    pub(super) async fn try_call(
        &self,
        method: &str,
        params: Value,
    ) -> Result<Answer, SandboxError> {
        self.send(method, params).answer().await
    }

    /// Sends a command that must succeed.
    ///
    /// # Errors
    /// The browser has ended, does not answer, or rejects the command.
    pub(super) async fn call(&self, method: &str, params: Value) -> Result<Value, SandboxError> {
        let answer = self.try_call(method, params).await?;
        answer.map_err(|error| match self.status().crashed {
            true => browser_ended(),
            false => SandboxError::Unavailable(format!("{method}: {error}")),
        })
    }
}

impl Sent {
    /// The answer of the browser.
    ///
    /// # Errors
    /// The browser has ended or does not answer.
    pub(super) async fn answer(mut self) -> Result<Answer, SandboxError> {
        // A crashed page answers nothing.
        let answer = async {
            tokio::select! {
                biased;
                answer = self.answer => answer.ok(),
                _ = self.status.wait_for(|status| status.crashed) => None,
            }
        };
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(browser_ended()),
            Err(_) => {
                tracing::debug!(method = self.method, "the browser does not answer");
                Err(SandboxError::Timeout)
            }
        }
    }
}

pub(super) fn browser_ended() -> SandboxError {
    SandboxError::NotFound("the browser has ended".to_owned())
}

impl Drop for Cdp {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    fn send(&self, method: &str, params: Value) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &*lock(&self.session) {
            message["sessionId"] = json!(session);
        }
        if let Some(pending) = &mut *lock(&self.pending) {
            pending.insert(id, sender);
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        // A closed pipe drops the sender of the answer as well.
        let _ = self.outgoing.send(text);
        receiver
    }

    fn receive(&self, mut message: Value) {
        if let Some(id) = message["id"].as_u64() {
            let sender = lock(&self.pending).as_mut().and_then(|all| all.remove(&id));
            let answer = match message["error"]["message"].as_str() {
                Some(error) => Err(error.to_owned()),
                None => Ok(message["result"].take()),
            };
            if let Some(sender) = sender {
                // The caller may have given up.
                let _ = sender.send(answer);
            }
            return;
        }
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Fetch.requestPaused" => {
                let (method, answer) = self.pages.answer(params);
                drop(self.send(method, answer));
            }
            "Page.javascriptDialogOpening" => {
                // The page waits for it. Questions are answered with no.
                let kind = params["type"].as_str().unwrap_or_default();
                let accept = matches!(kind, "alert" | "beforeunload");
                drop(self.send("Page.handleJavaScriptDialog", json!({"accept": accept})));
                let text = params["message"].as_str().unwrap_or_default().to_owned();
                self.status.send_modify(|status| {
                    if status.dialogs.len() < MAX_DIALOGS {
                        status.dialogs.push(text);
                    }
                });
            }
            "Page.frameStartedLoading" => self.loading(params, true),
            "Page.frameStoppedLoading" => self.loading(params, false),
            "Inspector.targetCrashed" | "Target.detachedFromTarget" => {
                self.status.send_modify(|status| status.crashed = true);
            }
            "Input.dragIntercepted" => {
                let data = params["data"].clone();
                self.status.send_modify(|status| status.drag = Some(data));
            }
            _ => {}
        }
    }

    fn loading(&self, params: &Value, loading: bool) {
        self.status.send_modify(|status| {
            if params["frameId"] == *status.main_frame {
                status.loading = loading;
            }
        });
    }
}

async fn send_all(mut pipe: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(message) = queue.recv().await {
        if pipe.write_all(&message).await.is_err() {
            return;
        }
    }
}

/// Receives messages until the browser closes the pipe, then fails the commands that wait for an answer.
async fn receive_all(mut pipe: OwnedReadHalf, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    let mut chunk = vec![0; 256 << 10];
    let mut searched = 0;
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        buffer.extend_from_slice(&chunk[..length]);
        while let Some(end) = buffer[searched..].iter().position(|byte| *byte == 0) {
            let end = searched + end;
            if let Ok(message) = serde_json::from_slice(&buffer[..end]) {
                shared.receive(message);
            }
            buffer.drain(..=end);
            searched = 0;
        }
        searched = buffer.len();
        if buffer.len() > MAX_MESSAGE {
            break;
        }
    }
    *lock(&shared.pending) = None;
    shared.status.send_modify(|status| status.crashed = true);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
