//! `clawhost plugin`: look into components before they run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_plugins::{HostOptions, PluginHost};

use crate::output::{say, say_json};
use crate::serve::read_plugin;

/// Arguments of `clawhost plugin`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost plugin inspect judge.wasm")]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Kind, version, imports, needs and digest of a component; runs nothing
    #[command(after_help = "Example:\n  clawhost plugin inspect judge.wasm --json")]
    Inspect {
        /// The component
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(crate) fn plugin(args: &PluginArgs) -> Result<ExitCode> {
    match &args.command {
        PluginCommand::Inspect { file, json } => {
            let bytes = read_plugin(file)?;
            let found = PluginHost::new(HostOptions::default())?
                .inspect(&bytes)
                .with_context(|| format!("{} cannot be used", file.display()))?;
            if *json {
                say_json(&found)?;
            } else {
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
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
