//! `clawhost config`: prints the effective configuration.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::config::Config;
use crate::output::print;

/// Arguments of `clawhost config`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost config > clawhost.toml      every key with its default\n  \
    clawhost config --config clawhost.toml"
)]
pub(crate) struct ConfigArgs {
    /// Configuration file to read
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn config(args: &ConfigArgs) -> Result<ExitCode> {
    let mut config = Config::load(args.config.as_deref(), None)?;
    for key in &mut config.keys {
        if !key.secret.starts_with("env:") {
            key.secret = "(redacted)".to_owned();
        }
    }
    print(&toml::to_string(&config)?)?;
    Ok(ExitCode::SUCCESS)
}
