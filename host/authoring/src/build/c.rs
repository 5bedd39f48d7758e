//! C: bindings from the folder `wit`, one call of the compiler, and the module becomes the component.

use std::ffi::OsString;
use std::fs;

use crate::component;
use crate::error::AuthoringError;

use super::job::Job;

const BINDINGS: &str = "build/bindings";
const MODULE: &str = "build/plugin.module.wasm";

pub(super) fn build(job: &Job<'_>) -> Result<(), AuthoringError> {
    component::c_bindings(&job.dir.join("wit"), &job.dir.join(BINDINGS))?;
    let mut arguments: Vec<OsString> = [
        "-target",
        "wasm32-wasi",
        // A library with functions to call, not a program with a `main`.
        "-mexec-model=reactor",
        "-std=c17",
        "-O2",
        "-Wall",
        "-DNDEBUG",
        "-s",
        // zig would give 16 MiB, and each instance would hold them.
        "-Wl,-z,stack-size=1048576",
        "-Isdk/c/include",
    ]
    .map(OsString::from)
    .into();
    arguments.push(format!("-I{BINDINGS}").into());
    arguments.extend(sources(job)?);
    arguments.push(format!("{BINDINGS}/clawhost.c").into());
    arguments.push(format!("{BINDINGS}/clawhost_component_type.o").into());
    arguments.extend(["-o", MODULE].map(OsString::from));
    job.run("a C compiler for WebAssembly", arguments)?;
    job.finish(&job.dir.join(MODULE))
}

/// The plugin's own files: every `.c` of its folder.
fn sources(job: &Job<'_>) -> Result<Vec<OsString>, AuthoringError> {
    let failed = |source| AuthoringError::Read {
        path: job.dir.to_owned(),
        source,
    };
    let mut sources = Vec::new();
    for entry in fs::read_dir(job.dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name.to_string_lossy().ends_with(".c") {
            sources.push(name);
        }
    }
    sources.sort();
    Ok(sources)
}
