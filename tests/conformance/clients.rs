//! Where the clients are installed, and running their scripts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The Python that has `tests/clients/requirements.txt` installed.
pub(crate) const PYTHON: &str = "CLAWHOST_CLIENTS_PYTHON";
/// The folder in which `tests/clients/node/package.json` is installed.
pub(crate) const NODE: &str = "CLAWHOST_CLIENTS_NODE";

/// What the environment says of a client; without it the test is skipped, save in continuous integration.
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

/// Node.js with the clients that are installed in `folder`. A module is looked for beside the script that wants it, so
/// the scripts are copied to where the clients are, until the second value is dropped.
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

/// Runs a command to its end, away from the threads that serve it, and without a proxy.
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
