//! `clawhost eval`: what the program promises about learning, measured.

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
    /// Every way of learning beside the frozen policy: how soon first replies are what a person wants, and what is forgotten
    Personalize(Box<personalize::PersonalizeArgs>),
}

/// Runs the command.
pub(crate) fn eval(args: &EvalArgs) -> Result<ExitCode> {
    match &args.what {
        What::Personalize(args) => personalize::personalize(args),
    }
}
