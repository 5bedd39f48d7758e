//! Python: componentize-py puts the interpreter, the SDK and the plugin into one component.

use std::ffi::OsString;

use clawhost_plugins::Kind;

use crate::error::AuthoringError;

use super::Job;

pub(super) fn build(job: &Job<'_>) -> Result<(), AuthoringError> {
    let mut modules = vec!["clawhost_entry.py"];
    if job.manifest.kind == Kind::Environment {
        // Where the component looks for its resource.
        modules.push("environment.py");
    }
    let entry = job.write_entry("sdk/python/entry", &modules, ("", ""))?;
    let mut arguments: Vec<OsString> = [
        "--quiet",
        "--wit-path",
        "wit",
        "--world",
        "plugin",
        "componentize",
        // Without it the component imports WASI, which is a capability that no plugin needs.
        "--stub-wasi",
        // First, so that nothing of the plugin stands for a module of the entry.
        "--python-path",
        entry,
        "--python-path",
        ".",
        "--python-path",
        "sdk/python",
        "--output",
    ]
    .map(OsString::from)
    .into();
    arguments.push((&job.manifest.component).into());
    // The module that the component calls, which calls the author's.
    arguments.push("clawhost_entry".into());
    job.run("componentize-py", arguments)
}
