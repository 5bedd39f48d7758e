//! The supervisor process of a machine, as the host sees it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long a supervisor may take to end its machine, before it is killed, which ends the machine too.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The command that runs [`crate::supervise_machine`]. It is started with an empty environment; usually it is this
/// program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisorCommand {
    /// The program, as an absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl SupervisorCommand {
    /// Creates a command from a program and its arguments.
    pub fn new<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }

    /// Starts a supervisor and returns the socket to it. `browser`: the end of the pipe that its browser will have.
    pub(crate) fn start(&self, browser: Option<OwnedFd>) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(OwnedFd::from(theirs))
            .stdout(browser.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .spawn()?;
        Ok((child, ours))
    }
}

/// Waits until a supervisor has ended, whose socket is closed, or kills it.
pub(crate) fn end(mut child: Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let ended = pid
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .and_then(|process| {
            let timeout = Timespec::try_from(END_TIMEOUT).ok()?;
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            poll(&mut fds, Some(&timeout)).ok()
        });
    if ended != Some(1) {
        // It may have ended meanwhile.
        let _ = child.kill();
    }
    if let Err(error) = child.wait() {
        tracing::warn!("cannot wait for the supervisor of a machine: {error}");
    }
}
