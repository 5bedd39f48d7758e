//! The `clawhost` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    clawhost::main_as_program(std::env::args_os())
}
