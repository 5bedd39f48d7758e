//! JavaScript: componentize-qjs puts QuickJS and the plugin's modules into one component.

use std::ffi::OsString;

use crate::error::AuthoringError;

use super::Job;

pub(super) fn build(job: &Job<'_>) -> Result<(), AuthoringError> {
    let mut arguments: Vec<OsString> = [
        "--wit",
        "wit",
        "--world",
        "plugin",
        "--js",
        "plugin.js",
        "--module-root",
        ".",
        // Without these the component imports WASI, and asks for the async kind of call.
        "--stub-wasi",
        "--sync",
        "--output",
    ]
    .map(OsString::from)
    .into();
    arguments.push((&job.manifest.component).into());
    job.run("componentize-qjs", arguments)
}
