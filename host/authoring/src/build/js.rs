//! JavaScript: componentize-qjs puts QuickJS and the plugin's modules into one component.

use std::ffi::OsString;

use clawhost_plugins::Kind;

use crate::error::AuthoringError;

use super::cache::{self, Inputs};
use super::job::Job;

const TOOL: &str = "componentize-qjs";

/// The line of the entry that imports the host's log, for a loss only.
const NO_LOG: &str = "const log = null;";
const LOG: &str = "import log from \"clawhost:plugin/log\";";

/// Builds the component or restores it from the cache; returns whether it was restored.
pub(super) fn build(job: &Job<'_>) -> Result<bool, AuthoringError> {
    // `describe` of a loss cannot return an error, so an exception there is logged.
    let log = match job.manifest.kind {
        Kind::Loss => LOG,
        _ => NO_LOG,
    };
    let entry = job.write_entry("sdk/js/entry", &["entry.js", "guard.js"], (NO_LOG, log))?;
    let inputs = Inputs::collect(job, TOOL, entry).and_then(|mut inputs| {
        let packages = job.dir.join("node_modules");
        if packages.exists() {
            inputs.add_packages(&packages).ok()?;
        }
        Some(inputs)
    });
    let mut arguments: Vec<OsString> = [
        "--wit",
        "wit",
        "--world",
        "plugin",
        "--module-root",
        ".",
        // Without these the component imports WASI, and asks for the async kind of call.
        "--stub-wasi",
        "--sync",
    ]
    .map(OsString::from)
    .into();
    arguments.extend(["--js".into(), format!("{entry}/entry.js").into()]);
    arguments.extend(["--output".into(), OsString::from(&job.manifest.component)]);
    cache::restore_or_build(job, inputs, || job.run(TOOL, arguments))
}
