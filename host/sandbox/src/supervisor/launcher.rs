//! Forks a supervisor for each machine that the host asks for.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::stdio::{dup2_stdin, dup2_stdout};

use super::{spawn, supervise};
use crate::descriptors;

/// Runs the launcher of supervisors; standard input is the socket of the host. This is the program that
/// [`crate::SupervisorCommand`] starts. It must be called before the process starts a thread, and the process must exit
/// afterwards.
pub fn supervise_machines() -> ExitCode {
    // Without a socket there is nobody to report an error to.
    match spawn::only_standard_streams().and_then(|()| launch()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves the host until it is gone. Also returns in each supervisor, when its machine has ended.
fn launch() -> io::Result<()> {
    let host = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    spawn::leave_children_to_kernel(true);
    while let Some((_, fds)) = descriptors::receive(&host)? {
        let mut fds = fds.into_iter();
        let machine = UnixStream::from(fds.next().ok_or(io::ErrorKind::InvalidData)?);
        let browser = fds.next();
        match spawn::fork() {
            Ok(None) => {
                drop(host);
                spawn::leave_children_to_kernel(false);
                take_streams(browser)?;
                return supervise(machine);
            }
            Ok(Some(pid)) => answer(&host, pid)?,
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(libc::EIO);
                descriptors::send(&host, number.saturating_neg().to_le_bytes(), &[])?;
            }
        }
    }
    Ok(())
}

/// Standard input is nothing, standard output the pipe of the browser.
fn take_streams(browser: Option<OwnedFd>) -> io::Result<()> {
    dup2_stdin(&File::open("/dev/null")?)?;
    if let Some(browser) = browser {
        dup2_stdout(&browser)?;
    }
    Ok(())
}

/// Names the supervisor to the host. It still runs, unless somebody killed it: it waits for the first request.
fn answer(host: &UnixStream, pid: Pid) -> io::Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let word = pid.as_raw_pid().to_le_bytes();
    descriptors::send(host, word, &[process.as_fd()])
}
