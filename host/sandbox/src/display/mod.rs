//! Displays: a headless Chromium in a machine of its own.
//!
//! The browser is driven over a pipe, so that no port is opened and nothing but this process can give it commands. It is a
//! process of the machine: the limits, the lease and the end of the machine are the browser's. It has no network:
//! every request is answered from the task's pages, which this process holds in memory, and the machine has only a
//! loopback interface on which nothing listens. It downloads nothing and opens no further windows.
//!
//! This module neither decides what an action means nor grades anything.

mod browser;
mod cdp;
mod input;
mod keys;
mod pages;
mod query;
mod tree;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::error::SandboxError;
use crate::frame::{Frame, HEIGHT, Input, Page, WIDTH};
use crate::lease::Owner;
use crate::machine::{Machine, check_text};
use crate::sandboxes::Sandboxes;
use crate::shared::Spec;
use cdp::Cdp;
use pages::PageSet;

/// How long an action waits for the page that it loads.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest part of the browser's last words in an error.
const MAX_LOG: usize = 64 << 10;

/// A browser with one page. It is ended with its machine, when the last clone is dropped.
#[derive(Clone)]
pub struct Display {
    inner: Arc<Inner>,
}

struct Inner {
    /// Before the machine, so that the pipe is closed first.
    cdp: Cdp,
    machine: Machine,
    pages: PageSet,
    /// Where the mouse is. Held during an operation, so that operations follow each other.
    mouse: Mutex<(u32, u32)>,
}

impl std::fmt::Debug for Display {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Display")
            .field("machine", &self.inner.machine)
            .finish_non_exhaustive()
    }
}

impl Sandboxes {
    /// Starts a machine with a browser, which shows an empty page. Waits while `sandbox.max_machines` are running.
    ///
    /// # Errors
    /// As [`Sandboxes::create`]; no browser is installed; a page has no valid address; the profile has `network`.
    pub async fn open_display(
        &self,
        owner: Owner,
        profile: &str,
        pages: Vec<Page>,
    ) -> Result<Display, SandboxError> {
        let (pages, served) = (PageSet::new(pages.clone())?, PageSet::new(pages)?);
        let has_network = self
            .config()
            .profile(profile)
            .is_some_and(|profile| profile.network);
        if has_network {
            return Err(SandboxError::Denied(format!(
                "displays have no network, and sandbox.profiles.{profile}.network is true; use another profile"
            )));
        }
        let program = browser::program(self.config().chromium.as_deref())?;
        let unavailable = |error: std::io::Error| {
            SandboxError::Unavailable(format!("cannot make a pipe: {error}"))
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(unavailable)?;
        ours.set_nonblocking(true).map_err(unavailable)?;
        let stream = UnixStream::from_std(ours).map_err(unavailable)?;
        let spec = Spec {
            profile: profile.to_owned(),
            ..Spec::default()
        };
        let machine = self.start(owner, spec, Some(OwnedFd::from(theirs))).await?;
        machine
            .open_browser(browser::command(&program), browser::environment())
            .await?;
        let cdp = Cdp::new(stream, served);
        if let Err(error) = prepare(&cdp).await {
            return Err(not_started(&machine, &program.display().to_string(), error).await);
        }
        Ok(Display {
            inner: Arc::new(Inner {
                cdp,
                machine,
                pages,
                mouse: Mutex::new((0, 0)),
            }),
        })
    }
}

/// Attaches to the page and makes it answer only to this process.
async fn prepare(cdp: &Cdp) -> Result<(), SandboxError> {
    let targets = cdp.call("Target.getTargets", json!({})).await?;
    let targets = targets["targetInfos"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let page = targets.into_iter().find(|target| target["type"] == "page");
    let page = match page {
        Some(page) => page,
        None => {
            let blank = json!({"url": "about:blank"});
            cdp.call("Target.createTarget", blank).await?
        }
    };
    cdp.call("Browser.setDownloadBehavior", json!({"behavior": "deny"}))
        .await?;
    let attach = json!({"targetId": page["targetId"], "flatten": true});
    let attached = cdp.call("Target.attachToTarget", attach).await?;
    let session = attached["sessionId"].as_str().unwrap_or_default();
    cdp.attach(session, page["targetId"].as_str().unwrap_or_default());
    let metrics =
        json!({"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false});
    for (method, params) in [
        ("Fetch.enable", json!({"patterns": [{"urlPattern": "*"}]})),
        ("Page.enable", json!({})),
        ("DOM.enable", json!({})),
        ("Accessibility.enable", json!({})),
        ("Inspector.enable", json!({})),
        ("Emulation.setDeviceMetricsOverride", metrics),
        (
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        ),
        (
            "Page.setInterceptFileChooserDialog",
            json!({"enabled": true}),
        ),
        ("Input.setInterceptDrags", json!({"enabled": true})),
    ] {
        cdp.call(method, params).await?;
    }
    Ok(())
}

/// The error of a browser that did not start, with its last words.
async fn not_started(machine: &Machine, program: &str, error: SandboxError) -> SandboxError {
    let log = machine.read_file("/tmp/browser.log", MAX_LOG).await;
    let log = log.unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let words = log.lines().rev().find(|line| !line.trim().is_empty());
    let words = words
        .map(|line| format!(": {}", line.trim()))
        .unwrap_or_default();
    SandboxError::Unavailable(format!("{program} did not start ({error}){words}"))
}

/// Waits until the page has drawn twice, so that what an event caused is visible. A page that is being left is no error.
async fn next_frame(cdp: &Cdp) -> Result<bool, SandboxError> {
    let twice =
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
    let call = json!({"expression": twice, "awaitPromise": true, "silent": true});
    Ok(cdp.try_call("Runtime.evaluate", call).await?.is_ok())
}

impl Display {
    /// The viewport, and the accessibility tree as text if `tree`.
    ///
    /// # Errors
    /// The browser has ended or does not answer.
    pub async fn observe(&self, tree: bool) -> Result<Frame, SandboxError> {
        let _mouse = self.begin().await?;
        let cdp = &self.inner.cdp;
        let page = self.page().await?;
        let tree = match tree {
            true => Some(self.tree_of(&page).await?),
            false => None,
        };
        let shot = cdp.call("Page.captureScreenshot", json!({"format": "png"}));
        let mut shot = shot.await?;
        let data = match shot["data"].take() {
            Value::String(data) => STANDARD.decode(data).ok(),
            _ => None,
        };
        let screenshot = data.ok_or_else(|| {
            SandboxError::Unavailable("the browser gave no screenshot".to_owned())
        })?;
        Ok(Frame {
            screenshot,
            tree,
            url: page["url"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// The accessibility tree as text: a line for each element, with a number in brackets (its mark) and the pixel at its
    /// middle if it is visible. The dialogs that were shown since the last time come after it.
    ///
    /// # Errors
    /// The browser has ended or does not answer.
    pub async fn tree(&self) -> Result<String, SandboxError> {
        let _mouse = self.begin().await?;
        let page = self.page().await?;
        self.tree_of(&page).await
    }

    /// Performs an action, and waits until the page has loaded and drawn what it caused.
    ///
    /// # Errors
    /// The action is not possible, or the browser has ended or does not answer.
    pub async fn act(&self, input: Input) -> Result<(), SandboxError> {
        let mut mouse = self.begin().await?;
        input::perform(&self.inner.cdp, &mut mouse, input).await?;
        self.settle().await
    }

    /// Shows a page of the task: a path, or an address.
    ///
    /// # Errors
    /// It is not a page of the task, or the browser has ended or does not answer.
    pub async fn navigate(&self, url: &str) -> Result<(), SandboxError> {
        let _mouse = self.begin().await?;
        let url = self.inner.pages.find(url)?;
        let to = json!({"url": url.as_str()});
        let answer = self.inner.cdp.call("Page.navigate", to).await?;
        if let Some(error) = answer["errorText"].as_str() {
            return Err(SandboxError::Denied(format!("{url}: {error}")));
        }
        self.settle().await
    }

    /// Runs a named query and returns its result as JSON: `page`, `select`, `storage`, `variable`, or one of the profile's.
    ///
    /// # Errors
    /// There is no such query, it fails, its result is too large, or the browser has ended or does not answer.
    pub async fn query(&self, name: &str, argument: &str) -> Result<String, SandboxError> {
        check_text(argument)?;
        let _mouse = self.begin().await?;
        let profile = self.inner.machine.profile();
        let result = query::run(&self.inner.cdp, profile, name, argument).await?;
        let text = result.to_string();
        if text.len() as u64 > profile.max_output {
            return Err(SandboxError::QuotaExceeded(format!(
                "the result of the query {name} has {} bytes; sandbox.profiles.NAME.max_output is {}",
                text.len(),
                profile.max_output
            )));
        }
        Ok(text)
    }

    /// Ends the display and waits until nothing of it is left, if this is the last clone.
    pub async fn release(self) {
        let machine = self.inner.machine.clone();
        drop(self);
        machine.release().await;
    }

    /// Begins an operation: the machine is in use, and its limits are checked.
    async fn begin(&self) -> Result<tokio::sync::MutexGuard<'_, (u32, u32)>, SandboxError> {
        let mouse = self.inner.mouse.lock().await;
        self.inner.machine.touch().await?;
        if self.inner.cdp.status().crashed {
            return Err(cdp::browser_ended());
        }
        Ok(mouse)
    }

    async fn settle(&self) -> Result<(), SandboxError> {
        let cdp = &self.inner.cdp;
        let until = Instant::now() + SETTLE_TIMEOUT;
        loop {
            cdp.wait_until_loaded(until.saturating_duration_since(Instant::now()))
                .await;
            let drawn = next_frame(cdp).await?;
            let status = cdp.status();
            if status.crashed {
                return Err(cdp::browser_ended());
            }
            if (drawn && !status.loading) || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// Address and title.
    async fn page(&self) -> Result<Value, SandboxError> {
        let profile = self.inner.machine.profile();
        query::run(&self.inner.cdp, profile, "page", "").await
    }

    async fn tree_of(&self, page: &Value) -> Result<String, SandboxError> {
        let cdp = &self.inner.cdp;
        let title = page["title"].as_str().unwrap_or_default();
        let url = page["url"].as_str().unwrap_or_default();
        let mut text = format!("page {} {url}\n", tree::quoted(title));
        text.push_str(&tree::read(cdp).await?);
        let mut dialogs = Vec::new();
        cdp.update(|status| dialogs = std::mem::take(&mut status.dialogs));
        for dialog in dialogs {
            text.push_str(&format!("dialog {}\n", tree::quoted(&dialog)));
        }
        Ok(text)
    }
}
