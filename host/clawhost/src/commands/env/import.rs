//! `clawhost env import`: task sets of other programs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use clawhost_episodes::{ImportOptions, TaskFormat, import_tasks};

use crate::output::{one_line, print};

/// Arguments of `clawhost env import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost env import math dapo.jsonl --tools calculator > tasks.jsonl\n  \
    clawhost env import swe-bench rows.jsonl --repos /srv/repos > tasks.jsonl\n  \
    clawhost env import terminal-bench ./tasks --skip-unsupported --held-out 0.2 > tasks.jsonl\n\n\
    Prints the task set. Nothing is run or downloaded."
)]
pub(crate) struct ImportArgs {
    /// Format of the tasks
    #[arg(value_name = "FORMAT")]
    format: Format,
    /// File of rows, folder of a task, or folder of such folders
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Share of the tasks that is held out, by a hash of their ids, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    held_out: f64,
    /// Profile of the machines [default: that of the environment]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// math: tools that the policy is offered, separated by commas [default: none]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,
    /// swe-bench: directory of the cloned repositories, OWNER/NAME or OWNER__NAME
    #[arg(long, value_name = "DIR")]
    repos: Option<PathBuf>,
    /// swe-bench: command that the names of tests are appended to [default: python3 -m pytest -q]
    #[arg(long, value_name = "COMMAND")]
    test_command: Option<String>,
    /// terminal-bench: leave out commands that install packages, because the host has them
    #[arg(long)]
    assume_installed: bool,
    /// Skip tasks that cannot be converted, with a line on standard error, instead of failing
    #[arg(long)]
    skip_unsupported: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON lines with `prompt` and `label`, for environment-toolcall
    Math,
    /// Rows of SWE-bench or SWE-Gym as JSON lines, for environment-swe
    SweBench,
    /// Folders of terminal-bench or SETA with a task.yaml, for environment-terminal
    TerminalBench,
}

/// Runs the command.
pub(super) fn import(args: &ImportArgs) -> Result<ExitCode> {
    ensure!(
        (0.0..=1.0).contains(&args.held_out),
        "--held-out {} must be between 0 and 1",
        args.held_out
    );
    let format = match args.format {
        Format::Math => TaskFormat::Math,
        Format::SweBench => TaskFormat::SweBench,
        Format::TerminalBench => TaskFormat::TerminalBench,
    };
    let options = ImportOptions {
        held_out: args.held_out,
        profile: args.profile.clone(),
        tools: args.tools.clone(),
        repositories: args.repos.clone(),
        test_command: args.test_command.clone(),
        assume_installed: args.assume_installed,
        skip_unsupported: args.skip_unsupported,
    };
    let imported = import_tasks(format, &args.path, &options)?;
    for skipped in &imported.skipped {
        tracing::warn!("skipped {}", one_line(&skipped.to_string()));
    }
    print(&imported.lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
