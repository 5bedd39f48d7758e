//! Headless Chromium, driven over the pipe of its DevTools protocol: messages are JSON that ends with a zero byte.
//!
//! The program is `CLAWHOST_CHROMIUM`, or the first of those that displays use (`chromium-headless-shell`, `chromium`,
//! `chromium-browser` and `google-chrome`) on `PATH`.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::TIMEOUT;

/// A browser with one tab.
pub(crate) struct Chromium {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// Of the tab, once it is open.
    session: Option<String>,
    last_id: u64,
    /// Uncaught exceptions, and violations of the content security policy.
    pub(crate) errors: Vec<String>,
    _profile: tempfile::TempDir,
}

/// The program; `None` if there is none on this machine.
pub(crate) fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("CLAWHOST_CHROMIUM") {
        return Some(program.into());
    }
    let path: OsString = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = [
        "chromium-headless-shell",
        "chromium",
        "chromium-browser",
        "google-chrome",
    ];
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|program| program.is_file())
}

impl Chromium {
    pub(crate) fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The browser reads commands from file descriptor 3 and writes messages to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 >/dev/null 2>&1", "sh"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args(["--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output
                .read_until(0, &mut message)
                .is_ok_and(|read| read > 0)
            {
                message.pop();
                let sent = serde_json::from_slice(&message).map(|message| sender.send(message));
                if !matches!(sent, Ok(Ok(()))) {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            session: None,
            last_id: 0,
            errors: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// Sends a command and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut command = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut text = command.to_string().into_bytes();
        text.push(0);
        self.commands.write_all(&text).unwrap();
        self.commands.flush().unwrap();
        loop {
            let mut message = self
                .messages
                .recv_timeout(TIMEOUT)
                .unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.last_id {
                // The page that a script waited in may have been left.
                let left = method == "Runtime.evaluate" && message["error"]["code"] == -32000;
                assert!(left || message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.collect_error(&message);
        }
    }

    fn collect_error(&mut self, message: &Value) {
        let entry = &message["params"]["entry"];
        let is_error = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            // A response with an error status is logged too, from the source `network`.
            Some("Log.entryAdded") => entry["level"] == "error" && entry["source"] != "network",
            _ => false,
        };
        if is_error {
            self.errors.push(message.to_string());
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
    }

    /// Evaluates an expression, and waits for it if it is a promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let poll = format!(
            "new Promise((resolve) => {{
               const end = Date.now() + {};
               const poll = () => {{
                 let met = false;
                 try {{ met = Boolean({expression}); }} catch {{ }}
                 if (met || Date.now() > end) resolve(met); else setTimeout(poll, 20);
               }};
               poll();
             }})",
            TIMEOUT.as_millis() / 2
        );
        let began = Instant::now();
        let mut met = self.evaluate(&poll);
        while met.is_null() && began.elapsed() < TIMEOUT {
            met = self.evaluate(&poll);
        }
        if met != true {
            let text = self.evaluate("document.body.innerText");
            panic!("never true: {expression}\n{}", text.as_str().unwrap_or(""));
        }
    }

    pub(crate) fn click(&mut self, selector: &str) {
        let button = format!("document.querySelector({})", json!(selector));
        self.wait_for(&format!("{button} && !{button}.disabled"));
        self.evaluate(&format!("{button}.click()"));
    }

    /// Sets width and color scheme, and writes a picture of the whole page to `file`.
    pub(crate) fn screenshot(&mut self, width: u32, scheme: &str, file: &Path) {
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let picture = self.call("Page.captureScreenshot", params);
        let bytes = STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
