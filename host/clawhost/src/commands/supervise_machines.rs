//! `clawhost supervise-machines`: supervises the machines of another `clawhost`.
//!
//! Internal: the protocol between the two processes may change with any version.

use std::process::ExitCode;

use clap::Args;

/// The subcommand.
#[cfg(target_os = "linux")]
pub(crate) const SUBCOMMAND: &str = "supervise-machines";

/// Arguments of `clawhost supervise-machines`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  none: clawhost starts it internally, for the machines of environments"
)]
pub(crate) struct SuperviseMachinesArgs {}

/// Supervises the machines of the host at standard input. Must run before this process starts a thread.
#[cfg(target_os = "linux")]
pub(crate) fn supervise_machines(_: &SuperviseMachinesArgs) -> ExitCode {
    clawhost_sandbox::supervise_machines()
}

/// Fails: this system has no machines.
#[cfg(not(target_os = "linux"))]
pub(crate) fn supervise_machines(_: &SuperviseMachinesArgs) -> ExitCode {
    ExitCode::FAILURE
}
