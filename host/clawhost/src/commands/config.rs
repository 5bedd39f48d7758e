//! `clawhost config`: prints the effective configuration with the documentation of every key.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::config::Config;
use crate::output::print;

/// Arguments of `clawhost config`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost config > clawhost.toml      every key with its documentation and default\n  \
    clawhost config --config clawhost.toml"
)]
pub(crate) struct ConfigArgs {
    /// Configuration file to read
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

/// Runs the command.
pub(crate) fn config(args: &ConfigArgs) -> Result<ExitCode> {
    let config = Config::load(args.config.as_deref(), &args.set, None)?;
    print(&clawhost_config::toml_text(&config.redacted())?)?;
    Ok(ExitCode::SUCCESS)
}
