//! The `clawhost` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    clawhost::main_with(std::env::args_os())
}
