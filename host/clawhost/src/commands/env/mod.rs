//! `clawhost env`: environments, in which a policy acts.

mod bench;
mod import;
mod play;
pub(in crate::commands) mod rollout;
mod top;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `clawhost env`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost env try environment.wasm --tasks tasks.jsonl --task 3\n  clawhost env top --every 2\n\n\
    See also `clawhost run --env`, `clawhost eval episodes` and `clawhost train --env`."
)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Play a task of an environment yourself
    Try(play::TryArgs),
    /// Measure how fast an environment steps, without a model
    Bench(bench::BenchArgs),
    /// Convert tasks of another program to a task set
    Import(import::ImportArgs),
    /// Show what the environments of a server do: episodes, rewards and samples
    Top(top::TopArgs),
    /// Bring the pages of kept episodes up to date, and print where they are
    Watch(watch::WatchArgs),
}

/// Runs the command.
pub(crate) fn env(args: &EnvArgs) -> Result<ExitCode> {
    match &args.what {
        What::Try(args) => play::play(args),
        What::Bench(args) => bench::bench(args),
        What::Import(args) => import::import(args),
        What::Top(args) => top::top(args),
        What::Watch(args) => watch::watch(args),
    }
}
