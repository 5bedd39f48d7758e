//! `clawhost plugin inspect`: what a component is, without running it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_plugins::HostOptions;

use crate::compiling;
use crate::output::{say, say_json};
use crate::serve::read_plugin;

/// Arguments of `clawhost plugin inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost plugin inspect judge.wasm --json")]
pub(crate) struct InspectArgs {
    /// The component
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn inspect(args: &InspectArgs) -> Result<ExitCode> {
    let bytes = read_plugin(&args.file)?;
    let found = compiling::host(HostOptions::default())?
        .inspect(&bytes)
        .with_context(|| format!("{} cannot be used", args.file.display()))?;
    if args.json {
        say_json(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = |items: &[String]| {
        if items.is_empty() {
            "none".to_owned()
        } else {
            items.join(", ")
        }
    };
    say(&format!(
        "kind      {}\ncontract  clawhost:plugin@{}\nimports   {}\nexports   {}\nwasi      {}\nsize      {} bytes\nsha256    {}",
        found.kind,
        found.contract,
        list(&found.imports),
        list(&found.exports),
        if found.wasi {
            "linked, with nothing behind it"
        } else {
            "none"
        },
        found.bytes,
        found.digest,
    ))?;
    Ok(ExitCode::SUCCESS)
}
