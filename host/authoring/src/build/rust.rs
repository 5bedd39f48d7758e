//! Rust: cargo makes a module that carries its contract, which becomes the component.

use crate::error::AuthoringError;
use crate::tools::RUST_TARGET;

use super::job::Job;

pub(super) fn build(job: &Job<'_>) -> Result<(), AuthoringError> {
    let folder = "build/cargo";
    let arguments = [
        "build",
        "--release",
        "--target",
        RUST_TARGET,
        "--target-dir",
        folder,
    ];
    job.run("cargo", arguments)?;
    // The crate is named as the plugin is; cargo writes underscores.
    let file = format!("{}.wasm", job.manifest.name.replace('-', "_"));
    let module = job.dir.join(folder).join(RUST_TARGET).join("release");
    job.finish(&module.join(file))
}
