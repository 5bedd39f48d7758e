//! `clawhost eval`: measures the learning targets.

mod cells;
mod learning;
mod personalize;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `clawhost eval`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost eval personalize --seeds 1 --personas student")]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Compare every training method with the frozen model: how soon first replies match a persona's preferences, and
    /// how much is forgotten
    Personalize(Box<personalize::PersonalizeArgs>),
}

/// Runs the command.
pub(crate) fn eval(args: &EvalArgs) -> Result<ExitCode> {
    match &args.what {
        What::Personalize(args) => personalize::personalize(args),
    }
}
