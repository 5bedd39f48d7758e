//! `clawhost compile-component`: compiles one plugin in a subprocess of another `clawhost`.
//!
//! Internal: the protocol between the two processes may change with any version.

use std::process::ExitCode;

use clap::Args;

/// Arguments of `clawhost compile-component`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  none: clawhost starts it internally, with time and memory limits, for each plugin whose \
    compiled code is not cached"
)]
pub(crate) struct CompileComponentArgs {}

/// Compiles the component on standard input. Sets process-wide resource limits.
pub(crate) fn compile_component(_: &CompileComponentArgs) -> ExitCode {
    clawhost_plugins::compile_component()
}
