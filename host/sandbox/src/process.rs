//! The processes of supervisors, as the host sees them.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use crate::descriptors;

/// How long a supervisor may take to end its machine, before it is killed, which ends the machine too.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the launcher may take to fork a supervisor, on a busy host.
const FORK_TIMEOUT: Duration = Duration::from_secs(30);

/// The command that runs [`crate::supervise_machines`]. It is started with an empty environment; usually it is this
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
}

/// Starts supervisors: forks of one process, the launcher, which is started with the first of them.
pub(crate) struct Launcher {
    command: SupervisorCommand,
    process: Mutex<Option<LauncherProcess>>,
}

struct LauncherProcess {
    child: Child,
    socket: UnixStream,
}

/// A started supervisor.
pub(crate) struct Supervisor {
    /// Its process id.
    pub(crate) pid: u32,
    /// Readable when it has ended.
    process: OwnedFd,
}

impl Launcher {
    pub(crate) fn new(command: SupervisorCommand) -> Self {
        Self {
            command,
            process: Mutex::default(),
        }
    }

    /// Starts a supervisor and returns the socket to it. `browser`: the end of the pipe that its browser will have.
    ///
    /// # Errors
    /// The launcher cannot be started or does not answer; the next call starts another one.
    pub(crate) fn start(&self, browser: Option<OwnedFd>) -> io::Result<(Supervisor, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut launcher = match process.take() {
            Some(launcher) if launcher.is_running() => launcher,
            _ => LauncherProcess::start(&self.command)?,
        };
        let supervisor = launcher.fork(&theirs, browser.as_ref())?;
        *process = Some(launcher);
        Ok((supervisor, ours))
    }
}

impl LauncherProcess {
    fn start(command: &SupervisorCommand) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(FORK_TIMEOUT))?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, socket })
    }

    /// Whether it has not ended.
    fn is_running(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }

    fn fork(&mut self, machine: &UnixStream, browser: Option<&OwnedFd>) -> io::Result<Supervisor> {
        let browser = browser.map(AsFd::as_fd);
        let fds: Vec<_> = [machine.as_fd()].into_iter().chain(browser).collect();
        descriptors::send(&self.socket, [0; 4], &fds)?;
        let answer = descriptors::receive(&self.socket)?;
        let (word, fds) = answer.ok_or_else(|| io::Error::other("its launcher has ended"))?;
        let number = i32::from_le_bytes(word);
        let Ok(pid) = u32::try_from(number) else {
            return Err(io::Error::from_raw_os_error(number.saturating_neg()));
        };
        // The kernel drops a descriptor that this process has no room for.
        let process = fds.into_iter().next();
        let process = process.ok_or_else(|| io::Error::from(rustix::io::Errno::MFILE))?;
        Ok(Supervisor { pid, process })
    }
}

impl Drop for LauncherProcess {
    fn drop(&mut self) {
        // It has nothing to save, and the supervisors do not need it any more.
        let _ = self.child.kill();
        if let Err(error) = self.child.wait() {
            tracing::warn!("cannot wait for the launcher of supervisors: {error}");
        }
    }
}

impl Supervisor {
    /// Waits until it has ended, once its socket is closed, or kills it.
    pub(crate) fn end(self) {
        if !self.ended_within(END_TIMEOUT) {
            // It may have ended meanwhile.
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
            if !self.ended_within(END_TIMEOUT) {
                tracing::warn!("the supervisor {} of a machine does not end", self.pid);
            }
        }
    }

    fn ended_within(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        matches!(poll(&mut fds, timeout.as_ref()), Ok(1))
    }
}
