//! The supervisors of machines as a program of its own, for the tests of this crate.

fn main() -> std::process::ExitCode {
    #[cfg(target_os = "linux")]
    return clawhost_sandbox::supervise_machines();
    #[cfg(not(target_os = "linux"))]
    std::process::ExitCode::FAILURE
}
