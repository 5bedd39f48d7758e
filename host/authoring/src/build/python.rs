//! Python: componentize-py puts the interpreter, the SDK and the plugin into one component.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clawhost_plugins::Kind;

use crate::error::AuthoringError;

use super::cache::{self, Inputs};
use super::job::Job;

const TOOL: &str = "componentize-py";
/// Where the tool looks for packages that the plugin may import.
const ENVIRONMENT: &str = "VIRTUAL_ENV";
/// An empty environment, used if there is none.
const NO_PACKAGES: &str = "build/no-packages";

/// Builds the component or restores it from the cache; returns whether it was restored.
pub(super) fn build(job: &Job<'_>) -> Result<bool, AuthoringError> {
    let mut modules = vec!["clawhost_entry.py"];
    if job.manifest.kind == Kind::Environment {
        // Where the component looks for its resource.
        modules.push("environment.py");
    }
    let entry = job.write_entry("sdk/python/entry", &modules, ("", ""))?;
    let environment =
        match cache::find_environment(std::env::var_os(ENVIRONMENT).as_deref(), job.dir) {
            Some(environment) => environment,
            None => create_empty_environment(job.dir)?,
        };
    let inputs = Inputs::collect(job, TOOL, entry).and_then(|mut inputs| {
        for packages in cache::find_packages(&environment) {
            inputs.add_packages(&packages).ok()?;
        }
        Some(inputs)
    });
    let mut arguments: Vec<OsString> = [
        "--quiet",
        "--wit-path",
        "wit",
        "--world",
        "plugin",
        "componentize",
        // Without it the component imports WASI, which is a capability that no plugin needs.
        "--stub-wasi",
        // First, so that no module of the plugin shadows a module of the entry.
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
    // The tool runs in the plugin's folder.
    let environment = std::path::absolute(&environment).unwrap_or(environment);
    cache::restore_or_build(job, inputs, || {
        job.run_with(TOOL, arguments, Some((ENVIRONMENT, &environment)))
    })
}

/// Creates an environment without packages. Without any environment the tool uses the packages of the system's Python, and
/// the component would depend on what is installed there.
fn create_empty_environment(dir: &Path) -> Result<PathBuf, AuthoringError> {
    let environment = dir.join(NO_PACKAGES);
    let packages = environment.join("lib/site-packages");
    fs::create_dir_all(&packages).map_err(|source| AuthoringError::Write {
        path: packages,
        source,
    })?;
    Ok(environment)
}
