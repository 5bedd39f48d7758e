//! `clawhost plugin`: create, inspect, run and grant plugins.

mod author;
mod bench;
mod grant;
mod inspect;
mod list;
pub(super) mod load;
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
    /// Create a plugin directory with a working plugin in Rust, Python, JavaScript or C
    New(author::NewArgs),
    /// Build the component with the language's own tools
    Build(author::BuildArgs),
    /// Run a component on its transcripts
    Test(author::TestArgs),
    /// Make one call and print the answer and its cost
    Run(run::RunArgs),
    /// Show kind, version, imports, required capabilities and digest of a component without running it
    Inspect(inspect::InspectArgs),
    /// Measure calls on this machine: latency, calls per second, memory
    Bench(bench::BenchArgs),
    /// Grant this build of a component access to a model, its state or an origin
    Grant(grant::GrantArgs),
    /// List grants by build, and the embedded plugins
    List(list::ListArgs),
    /// Show cost and outcome of each plugin's calls, from the receipts in the journal
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
