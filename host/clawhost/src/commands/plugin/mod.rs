//! `clawhost plugin`: make, look into, try and permit components.

mod author;
mod bench;
mod grant;
mod inspect;
mod list;
mod offer;
mod run;
mod top;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `clawhost plugin`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin new judge my-judge --lang python\n  clawhost plugin inspect judge.wasm\n  clawhost plugin grant judge.wasm model=judge"
)]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// A folder with a plugin that works, in Rust, Python, JavaScript or C
    New(author::NewArgs),
    /// Make the component, with the language's own tools
    Build(author::BuildArgs),
    /// Run a component on the transcripts beside it
    Test(author::TestArgs),
    /// One call: what the component answers and what it cost
    Run(run::RunArgs),
    /// Kind, version, imports, needs and digest of a component; runs nothing
    Inspect(inspect::InspectArgs),
    /// What calls cost on this machine: times, calls per second, memory
    Bench(bench::BenchArgs),
    /// Let exactly this build of a component reach a model, its state, an origin
    Grant(grant::GrantArgs),
    /// What has been granted to which build, and what ships with the program
    List(list::ListArgs),
    /// What the calls of each plugin cost and how they ended, from the receipts in the journal
    Top(top::TopArgs),
}

/// Runs the command.
pub(crate) fn plugin(args: &PluginArgs) -> Result<ExitCode> {
    match &args.command {
        PluginCommand::New(args) => author::new(args),
        PluginCommand::Build(args) => author::build(args),
        PluginCommand::Test(args) => author::test(args),
        PluginCommand::Run(args) => run::run(args),
        PluginCommand::Inspect(args) => inspect::inspect(args),
        PluginCommand::Bench(args) => bench::bench(args),
        PluginCommand::Grant(args) => grant::grant(args),
        PluginCommand::List(args) => list::list(args),
        PluginCommand::Top(args) => top::top(args),
    }
}
