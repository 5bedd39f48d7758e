//! `clawhost supervise-machine`: supervises one machine of another `clawhost`.
//!
//! Internal: the protocol between the two processes may change with any version.

use std::process::ExitCode;

use clap::Args;

/// The subcommand.
#[cfg(target_os = "linux")]
pub(crate) const SUBCOMMAND: &str = "supervise-machine";

/// Arguments of `clawhost supervise-machine`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  none: clawhost starts it internally, for each machine of an environment"
)]
pub(crate) struct SuperviseMachineArgs {}

/// Supervises the machine of the host at standard input. Must run before this process starts a thread.
#[cfg(target_os = "linux")]
pub(crate) fn supervise_machine(_: &SuperviseMachineArgs) -> ExitCode {
    clawhost_sandbox::supervise_machine()
}

/// Fails: this system has no machines.
#[cfg(not(target_os = "linux"))]
pub(crate) fn supervise_machine(_: &SuperviseMachineArgs) -> ExitCode {
    ExitCode::FAILURE
}
