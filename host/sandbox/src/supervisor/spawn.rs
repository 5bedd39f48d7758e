//! Forks, what a child does between `fork` and `exec`, and the file descriptors that it must not inherit. The only module
//! with unsafe code.
#![allow(
    unsafe_code,
    reason = "fork, code between fork and exec, and closing file descriptors by number"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, ioctl_tiocsctty, nice, prlimit, setrlimit, setsid};

use crate::protocol::MachineSpec;

/// Added to the nice value of what runs in a machine, so that serving has priority.
const NICE: i32 = 10;

/// Closes everything except the standard streams: what a library of the host opened without close-on-exec would reach
/// the machine.
pub(super) fn only_standard_streams() -> io::Result<()> {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The directory that was read is closed by now.
        if rustix::io::fcntl_getfd(unsafe_borrow(fd)).is_ok() {
            // SAFETY: this runs first in the process, so nothing owns the descriptors above the standard streams.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Ok(())
}

fn unsafe_borrow(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the descriptor is only asked for its flags; a closed one gives an error.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

/// Forks this process, which has one thread. None in the child.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: a process of one thread may do in the child what it may do itself.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Whether the kernel reaps children, which then cannot be waited for.
pub(super) fn leave_children_to_kernel(leave: bool) {
    let action = if leave { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: `signal` only makes a system call, and neither action is a handler.
    unsafe { libc::signal(libc::SIGCHLD, action) };
}

fn limits(spec: &MachineSpec) -> [(Resource, u64, u64); 5] {
    [
        (Resource::Core, 0, 0),
        (Resource::Fsize, spec.disk, 0),
        (Resource::Data, spec.memory, 0),
        (Resource::Nofile, 1024, 0),
        // The soft limit sends SIGXCPU; the hard limit a second later cannot be ignored.
        (Resource::Cpu, spec.cpu_seconds, 1),
    ]
}

fn rlimit(value: u64, slack: u64) -> Rlimit {
    Rlimit {
        current: Some(value),
        maximum: Some(value.saturating_add(slack)),
    }
}

fn apply(limits: &[(Resource, u64, u64)]) -> io::Result<()> {
    for (resource, value, slack) in limits {
        setrlimit(*resource, rlimit(*value, *slack))?;
    }
    Ok(())
}

/// What a server ignores because of how it was started (`nohup`, or in the background of a script) is not ignored by the
/// programs of a machine: Ctrl-C ends them.
fn reset_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: `signal` only makes a system call, and the default needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Limits bubblewrap and the first process, which sleeps. Their number of processes is not limited here, because outside
/// the machine those of the same user would count.
pub(super) fn limit_init(command: &mut Command, spec: &MachineSpec) {
    let limits = limits(spec);
    // SAFETY: between fork and exec the closure only makes system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || apply(&limits));
    }
}

/// Limits the number of processes of the first process.
pub(super) fn limit_running(init: Pid, spec: &MachineSpec) -> io::Result<()> {
    prlimit(Some(init), Resource::Nproc, rlimit(spec.processes, 0))?;
    Ok(())
}

/// Limits a command, and makes it the leader of a session of its own, with its standard input as terminal if `terminal`.
pub(super) fn limit_command(command: &mut Command, spec: &MachineSpec, terminal: bool) {
    let limits = limits(spec);
    let processes = rlimit(spec.processes, 0);
    // SAFETY: between fork and exec the closure only makes system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            reset_signals();
            setsid()?;
            if terminal {
                ioctl_tiocsctty(unsafe_borrow(0))?;
            }
            nice(NICE)?;
            apply(&limits)?;
            Ok(setrlimit(Resource::Nproc, processes)?)
        });
    }
}
