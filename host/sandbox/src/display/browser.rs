//! The browser's program, its arguments and its environment.

use std::path::{Path, PathBuf};

use crate::error::SandboxError;
use crate::frame::{HEIGHT, WIDTH};

/// Names of the program, the one that starts fastest first.
const NAMES: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// The program: the configured one, or the first one on `PATH`.
///
/// # Errors
/// There is none.
pub(super) fn program(configured: Option<&Path>) -> Result<PathBuf, SandboxError> {
    if let Some(program) = configured {
        return Ok(program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    NAMES
        .iter()
        .flat_map(|name| dirs.iter().map(move |dir| dir.join(name)))
        .find(|program| program.is_file())
        .ok_or_else(missing)
}

fn missing() -> SandboxError {
    SandboxError::Unavailable(
        "displays need Chromium, and none is installed; install it (Debian: apt-get install chromium-headless-shell, or \
        chromium) or set sandbox.chromium"
            .to_owned(),
    )
}

/// Program and arguments. The machine is the sandbox: the browser's own needs user namespaces, which a machine has none of.
/// No port is opened.
pub(super) fn command(program: &Path) -> Vec<String> {
    let mut argv = vec![program.display().to_string()];
    argv.extend(
        [
            "--headless",
            "--no-sandbox",
            // Three processes less to start for each episode.
            "--no-zygote",
            "--in-process-gpu",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--user-data-dir=/tmp/browser",
            "--no-first-run",
            "--no-default-browser-check",
            "--no-pings",
            "--mute-audio",
            "--password-store=basic",
            "--lang=en-US",
            "--force-device-scale-factor=1",
            "--renderer-process-limit=1",
            "--block-new-web-contents",
            "--disable-background-networking",
            "--disable-breakpad",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-smooth-scrolling",
            "--disable-sync",
            // Frames of other sites are in the page's process, where its requests are answered.
            "--disable-site-isolation-trials",
            "--disable-features=IsolateOrigins,site-per-process,Translate,OptimizationHints,MediaRouter",
            "--host-resolver-rules=MAP * ~NOTFOUND",
        ]
        .map(str::to_owned),
    );
    argv.push(format!("--window-size={WIDTH},{HEIGHT}"));
    argv.push("about:blank".to_owned());
    argv
}

/// Variables that the browser sets itself while it starts, the last one in a thread of its own. Those that it has already
/// are replaced in place. A new one makes the C library move and free the list of variables while other threads read it,
/// and then the browser, rarely, ends with a segmentation fault.
pub(super) fn environment() -> Vec<(String, String)> {
    [
        ("DBUS_SESSION_BUS_ADDRESS", "disabled:"),
        ("FC_FONTATIONS", "1"),
        // Replaced while the software renderer is loaded. There is no other.
        ("VK_ICD_FILENAMES", "/dev/null"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}
