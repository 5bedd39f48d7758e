//! `clawhost plugin inspect`: the properties of a component, without running it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_plugins::HostOptions;

use crate::compiling;
use crate::output::{join_or, print_result};
use crate::plugin_file::read_plugin;

/// Arguments of `clawhost plugin inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost plugin inspect judge.wasm --json")]
pub(crate) struct InspectArgs {
    /// Component file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn inspect(args: &InspectArgs) -> Result<ExitCode> {
    let bytes = read_plugin(&args.file)?;
    let component = compiling::host(HostOptions::default())?
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
