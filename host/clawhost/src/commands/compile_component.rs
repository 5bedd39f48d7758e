//! `clawhost compile-component`: the process that compiles one plugin for another `clawhost`.
//!
//! Nobody types it: what it reads and writes is between the two processes, and may change with any
//! version.

use std::process::ExitCode;

use clap::Args;

/// Arguments of `clawhost compile-component`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  none: clawhost starts it for itself, with limits on time and memory, for each plugin whose \
    compiled code it does not have"
)]
pub(crate) struct CompileComponentArgs {}

/// Compiles what is on standard input. Sets limits that this process keeps.
pub(crate) fn compile_component(_: &CompileComponentArgs) -> ExitCode {
    clawhost_plugins::compile_component()
}
