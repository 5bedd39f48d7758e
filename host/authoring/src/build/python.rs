//! Python: componentize-py puts the interpreter, the SDK and the plugin into one component.

use std::ffi::OsString;

use crate::error::AuthoringError;

use super::Job;

pub(super) fn build(job: &Job<'_>) -> Result<(), AuthoringError> {
    let mut arguments: Vec<OsString> = [
        "--quiet",
        "--wit-path",
        "wit",
        "--world",
        "plugin",
        "componentize",
        // Without it the component imports WASI, which is a capability that no plugin needs.
        "--stub-wasi",
        "--python-path",
        ".",
        "--python-path",
        "sdk/python",
        "--output",
    ]
    .map(OsString::from)
    .into();
    arguments.push((&job.manifest.component).into());
    arguments.push("plugin".into());
    job.run("componentize-py", arguments)
}
