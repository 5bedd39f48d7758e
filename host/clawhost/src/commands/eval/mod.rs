//! `clawhost eval`: measures the learning targets, the judges, and the model in environments.

mod calibrate;
mod cells;
mod episodes;
mod judge;
mod learning;
mod personalize;
mod selection;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `clawhost eval`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost eval personalize --seeds 1 --personas student\n  \
    clawhost eval calibrate --model ./SmolLM2-135M-Instruct.Q4_1.gguf\n  \
    clawhost eval judge --reactions development.jsonl --plugin judge-next-state\n  \
    clawhost eval episodes --env environment.wasm --tasks tasks.jsonl"
)]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Compare every training method with the frozen model: how soon first replies match a persona's preferences, and
    /// how much is forgotten
    Personalize(Box<personalize::PersonalizeArgs>),
    /// Measure judges and a hint extractor on labelled reactions: precision and recall by label, language and kind
    Judge(judge::JudgeArgs),
    /// Measure which wishes a real model meets unasked and when instructed, and so which can be learned
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// Measure how often the model solves the tasks of an environment: pass@1 and pass@k
    Episodes(Box<episodes::EpisodesArgs>),
}

/// Runs the command.
pub(crate) fn eval(args: &EvalArgs) -> Result<ExitCode> {
    match &args.what {
        What::Personalize(args) => personalize::personalize(args),
        What::Judge(args) => judge::judge(args),
        What::Calibrate(args) => calibrate::calibrate_command(args),
        What::Episodes(args) => episodes::episodes(args),
    }
}
