//! `clawhost plugin inspect`: the properties of a component, without running it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::load::ReadingFlags;
use crate::compiling;
use crate::output::{join_or, print_result};
use crate::plugin_file::PluginFiles;

/// Arguments of `clawhost plugin inspect`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin inspect judge.wasm --json\n  clawhost plugin inspect oci://ghcr.io/me/judge:1.0"
)]
pub(crate) struct InspectArgs {
    /// Component file, or oci://REGISTRY/NAME@sha256:DIGEST
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    configuration: ReadingFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn inspect(args: &InspectArgs) -> Result<ExitCode> {
    let config = args.configuration.load()?;
    let bytes = PluginFiles::new(&config).read(&args.file)?;
    let component = compiling::host(config.plugins.host.into())?
        .inspect(&bytes)
        .with_context(|| format!("cannot load {}", args.file.display()))?;
    let list = |items: &[String]| join_or(items, ", ", "none");
    print_result(args.json, &component, || {
        format!(
            "kind      {}\ncontract  clawhost:plugin@{}\nimports   {}\nexports   {}\nwasi      {}\nsize      {} bytes\nsha256    {}",
            component.kind,
            component.contract,
            list(&component.imports),
            list(&component.exports),
            if component.wasi {
                "linked, without access to the system"
            } else {
                "none"
            },
            component.bytes,
            component.digest,
        )
    })
}
