//! Locations of the installed clients, and running their scripts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The Python with `tests/clients/requirements.txt` installed.
pub(crate) const PYTHON: &str = "CLAWHOST_CLIENTS_PYTHON";
/// The directory in which `tests/clients/node/package.json` is installed.
pub(crate) const NODE: &str = "CLAWHOST_CLIENTS_NODE";

/// Path of a client from the environment; without it the test is skipped, except in CI.
pub(crate) fn installed(variable: &str) -> Option<PathBuf> {
    let place = std::env::var_os(variable).map(PathBuf::from);
    if place.is_none() {
        let missing = format!(
            "{variable} is not set, so its clients are missing; `.ci/clients` installs them"
        );
        let required = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!required, "{missing}");
        println!("not run: {missing}");
    }
    place
}

/// A script of `tests/clients`.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(name)
}

/// Node.js with the clients installed in `folder`. Modules are resolved relative to the script, so the scripts are
/// copied next to the clients until the second value is dropped.
pub(crate) fn node(folder: &Path, name: &str) -> (Command, TempDir) {
    let scripts = tempfile::Builder::new()
        .prefix("scripts-")
        .tempdir_in(folder)
        .unwrap();
    for file in ["cases.mjs", name] {
        std::fs::copy(script("node").join(file), scripts.path().join(file)).unwrap();
    }
    let mut command = Command::new("node");
    command.arg(scripts.path().join(name));
    (command, scripts)
}

/// Runs a command on a blocking thread and without a proxy.
pub(crate) async fn run(mut command: Command) -> Output {
    for proxy in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(proxy);
    }
    tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap()
}
