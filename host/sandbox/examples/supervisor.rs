//! The supervisor of a machine as a program of its own, for the tests of this crate.

fn main() -> std::process::ExitCode {
    #[cfg(target_os = "linux")]
    return clawhost_sandbox::supervise_machine();
    #[cfg(not(target_os = "linux"))]
    std::process::ExitCode::FAILURE
}
