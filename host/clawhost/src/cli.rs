//! The command line: what can be typed, and how a failure ends.
//!
//! Exit codes: 0 done, 1 failed (or, for `demo`, did not learn), 2 wrong usage. A failure is one
//! sentence on standard error that says what to do.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::commands::{
    adapter, backup, bench, compile_component, config, demo, eval, explain, export, journal,
    plugin, pretrain, replay, run, sft, status, train,
};
use crate::{allocator, compiling, usage};

/// Serve a language model as an OpenAI-compatible endpoint and keep training it from its conversations.
#[derive(Debug, Parser)]
#[command(
    name = "clawhost",
    version,
    propagate_version = true,
    after_help = "Examples:\n  clawhost demo                 see it learn, in a few minutes\n  \
        clawhost run                  serve the embedded policy on http://127.0.0.1:30000/v1\n  \
        clawhost run --model ./Qwen3-0.6B --plugin judge.wasm\n\n\
        Environment:\n  CLAWHOST_LOG    which events are told on standard error, such as debug or clawhost_plugins=debug\n  \
        CLAWHOST_CACHE  where compiled plugins are kept, or off [default: clawhost/compiled in the user's cache directory]\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model, watch the conversations, train from them
    Run(Box<run::RunArgs>),
    /// A scripted student talks to a server that learns and to one that does not
    Demo(demo::DemoArgs),
    /// Measure what is promised about learning, arm by arm
    Eval(eval::EvalArgs),
    /// Tell how a turn was matched, judged and trained, or why not
    Explain(explain::ExplainArgs),
    /// Write what was recorded as JSON lines, or what was learned as a whole model
    Export(export::ExportArgs),
    /// Bring in an adapter that was made elsewhere
    Adapter(adapter::AdapterArgs),
    /// Copy a data directory as it is at one instant, also while a server runs on it
    Backup(backup::BackupArgs),
    /// Make a data directory from a backup
    Restore(backup::RestoreArgs),
    /// Check the journal of a data directory, or recover what can be read of a damaged one
    Journal(journal::JournalArgs),
    /// Show what a data directory holds: turns, verdicts, steps, adapters
    Status(status::StatusArgs),
    /// Train on what is recorded, without a server, or show the next step
    Train(train::TrainArgs),
    /// Judge the record anew with another judge or other options, and show what would change
    Replay(replay::ReplayArgs),
    /// Look into plugin components
    Plugin(plugin::PluginArgs),
    /// Measure serving, training, judging and the journal on this machine
    Bench(bench::BenchArgs),
    /// Make an adapter from recorded conversations
    Sft(Box<sft::SftArgs>),
    /// Make a checkpoint from a recipe
    Pretrain(pretrain::PretrainArgs),
    /// Print the configuration that would be in effect
    Config(config::ConfigArgs),
    /// Compile one plugin for another clawhost
    #[command(hide = true)]
    CompileComponent(compile_component::CompileComponentArgs),
}

/// Runs one command line as the program that is called `clawhost`: plugins are compiled by further processes
/// of it, and their code is kept in the user's cache directory.
pub fn main_as_program(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    allocator::settle();
    compiling::is_the_program();
    main_with(args)
}

/// Runs one command line, the program's name first.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for; everything else is wrong usage.
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            complain(&usage::sentence(&error, Cli::command(), &args));
            return ExitCode::from(2);
        }
    };
    // What the compiler says is read by another process.
    if !matches!(cli.command, Command::CompileComponent(_)) {
        log_to_stderr();
    }
    let done = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::demo(args),
        Command::Eval(args) => eval::eval(args),
        Command::Explain(args) => explain::explain(args),
        Command::Export(args) => export::export(args),
        Command::Adapter(args) => adapter::adapter(args),
        Command::Backup(args) => backup::backup(args),
        Command::Restore(args) => backup::restore(args),
        Command::Journal(args) => journal::journal(args),
        Command::Status(args) => status::status(args),
        Command::Train(args) => train::train(args),
        Command::Replay(args) => replay::replay(args),
        Command::Plugin(args) => plugin::plugin(args),
        Command::Bench(args) => bench::bench(args),
        Command::Sft(args) => sft::sft(args),
        Command::Pretrain(args) => pretrain::pretrain(args),
        Command::Config(args) => config::config(args),
        Command::CompileComponent(args) => Ok(compile_component::compile_component(args)),
    };
    done.unwrap_or_else(|error| {
        complain(&usage::one_line(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

/// Says one sentence on standard error. Nobody is left to tell when that is closed.
fn complain(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "clawhost: {sentence}");
}

/// Events go to standard error; `CLAWHOST_LOG` chooses which (default `warn`, and `info` of ours under `run`).
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("CLAWHOST_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
    // A second command in one process (a test) keeps the first one's subscriber.
    drop(started);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_shows_an_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        cli.build();
        fn walk(command: &mut clap::Command, path: &str) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{path} has no example:\n{help}");
            for sub in command
                .get_subcommands_mut()
                .filter(|c| c.get_name() != "help")
            {
                let path = format!("{path} {}", sub.get_name());
                walk(sub, &path);
            }
        }
        walk(&mut cli, "clawhost");
    }
}
