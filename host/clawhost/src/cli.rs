//! The command line: subcommands, dispatch and exit codes.
//!
//! Exit codes: 0 success, 1 failure (or, for `demo`, the model did not learn), 2 wrong usage. An error is one line on
//! standard error that says what happened and what to do.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::commands::{
    adapter, backup, bench, compile_component, config, demo, doctor, env, eval, explain, export,
    journal, plugin, replay, run, sft, status, supervise_machines, train,
};
use crate::output::one_line;
use crate::{allocator, compiling, machines};

/// Serve a language model as an OpenAI-compatible endpoint and keep training it from its conversations.
#[derive(Debug, Parser)]
#[command(
    name = "clawhost",
    version,
    propagate_version = true,
    after_help = "Examples:\n  clawhost demo                 watch it learn, in a few minutes\n  \
        clawhost run                  serve the embedded policy on http://127.0.0.1:30000/v1\n  \
        clawhost run --model ./Qwen3-0.6B --plugin judge.wasm\n\n\
        Environment:\n  CLAWHOST_LOG    log filter for standard error, such as debug or clawhost_plugins=debug\n  \
        CLAWHOST_CACHE  directory of the compiled-plugin cache, or off [default: clawhost/compiled in the user's cache directory]\n  \
        CLAWHOST_SECTION__KEY  a key of the configuration, such as CLAWHOST_SERVER__PORT\n\n\
        Exit codes: 0 success, 1 failure, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model, record conversations and train on them
    Run(Box<run::RunArgs>),
    /// Compare a server that learns with one that does not, on a scripted student
    Demo(demo::DemoArgs),
    /// Evaluate learning: compare arms, check the stated targets, measure environments
    Eval(eval::EvalArgs),
    /// Play a task of an environment yourself
    Env(env::EnvArgs),
    /// Explain how a turn was matched, judged and trained on, or why not
    Explain(explain::ExplainArgs),
    /// Export recorded data as JSON lines, or the merged model
    Export(export::ExportArgs),
    /// Import an adapter that was trained with another tool
    Adapter(adapter::AdapterArgs),
    /// Take a consistent copy of a data directory, also while a server is using it
    Backup(backup::BackupArgs),
    /// Restore a data directory from a backup
    Restore(backup::RestoreArgs),
    /// Check the journal of a data directory, or recover what is readable from a damaged one
    Journal(journal::JournalArgs),
    /// Show the state of a data directory: turns, verdicts, training steps, adapters
    Status(status::StatusArgs),
    /// Train on recorded samples or in an environment, without a server
    Train(Box<train::TrainArgs>),
    /// Judge recorded turns again with another judge or other options, and show what would change
    Replay(replay::ReplayArgs),
    /// Inspect, test, grant and run plugin components
    Plugin(plugin::PluginArgs),
    /// Benchmark serving, training, judging and the journal on this machine
    Bench(bench::BenchArgs),
    /// Train an adapter on recorded conversations (supervised fine-tuning)
    Sft(Box<sft::SftArgs>),
    /// Print the effective configuration
    Config(config::ConfigArgs),
    /// Show what this machine has, and whether the configured model would start on it
    Doctor(doctor::DoctorArgs),
    /// Compile one plugin for another clawhost process
    #[command(hide = true)]
    CompileComponent(compile_component::CompileComponentArgs),
    /// Supervise the machines of environments for another clawhost process
    #[command(hide = true)]
    SuperviseMachines(supervise_machines::SuperviseMachinesArgs),
}

/// Runs one command line as the `clawhost` program itself: plugins are compiled in subprocesses of it, and compiled
/// code is cached in the user's cache directory.
pub fn main_as_program(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    // It forks for each machine, and a supervisor for each command: it parses no command line and stays small.
    #[cfg(target_os = "linux")]
    if args
        .get(1)
        .is_some_and(|first| first == supervise_machines::SUBCOMMAND)
    {
        return clawhost_sandbox::supervise_machines();
    }
    allocator::limit_arenas();
    compiling::enable_subprocess_compiler();
    let code = main_with(args);
    machines::finish();
    code
}

/// Runs one command line; the first argument is the program's name.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed standard output or error is ignored.
            let _ = error.print();
            // Help and version output is a success; everything else is wrong usage.
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    // The parent process parses the compiler's output, so it must not contain log lines.
    if !matches!(
        cli.command,
        Command::CompileComponent(_) | Command::SuperviseMachines(_)
    ) {
        log_to_stderr(match cli.command {
            Command::Run(_) => RUN_FILTER,
            _ => "warn",
        });
    }
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::demo(args),
        Command::Eval(args) => eval::eval(args),
        Command::Env(args) => env::env(args),
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
        Command::Config(args) => config::config(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::CompileComponent(args) => Ok(compile_component::compile_component(args)),
        Command::SuperviseMachines(args) => Ok(supervise_machines::supervise_machines(args)),
    };
    result.unwrap_or_else(|error| {
        print_error(&one_line(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

/// Prints one line on standard error. A closed standard error is ignored.
fn print_error(message: &str) {
    let _ = writeln!(std::io::stderr(), "clawhost: {message}");
}

/// The log filter of `clawhost run`: warnings, and what was chosen at the start.
const RUN_FILTER: &str = "warn,clawhost::start=info";

/// Logs to standard error. `CLAWHOST_LOG` overrides the filter.
fn log_to_stderr(filter: &str) {
    let filter = EnvFilter::try_from_env("CLAWHOST_LOG").unwrap_or_else(|_| EnvFilter::new(filter));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
    // A second command in the same process (in tests) keeps the first one's subscriber.
    drop(started);
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_an_example_in_its_help() {
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
