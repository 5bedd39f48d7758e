//! Runs a command with piped standard streams.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, test_kill_process_group,
};

use super::poll::Poller;
use super::{Operation, Stop, Supervisor, spawn};
use crate::error::SandboxError;
use crate::head_tail::{HeadTail, share};
use crate::output::Exit;
use crate::protocol::Reply;

/// Most bytes that are read at once.
const READ: usize = 64 << 10;
/// Most reads of one stream after the command has ended. Processes that it left behind may go on writing.
const LAST_READS: usize = 32;
/// Longest wait for the processes of a killed group to end. A killed process ends when it is next scheduled.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at a killed group, of which this process is not the parent.
const KILL_INTERVAL: Duration = Duration::from_millis(1);
/// Environment of every command.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/home/agent"),
    ("USER", "agent"),
    ("LOGNAME", "agent"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];

/// A command to start.
pub(super) struct Start<'a> {
    pub(super) argv: &'a [String],
    pub(super) env: &'a [(String, String)],
    pub(super) workdir: Option<&'a str>,
}

/// A started command. Dropping it before it has ended kills its process group.
pub(super) struct Running {
    pub(super) child: Child,
    /// Becomes readable when it ends.
    pub(super) pidfd: OwnedFd,
}

impl Running {
    pub(super) fn new(child: Child) -> io::Result<Self> {
        let pid = process_id(&child).ok_or_else(|| io::Error::other("invalid process id"))?;
        Ok(Self {
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            child,
        })
    }

    /// Kills the process group. The command must not have been waited for.
    fn kill(&mut self) {
        if let Some(pid) = process_id(&self.child) {
            // The group may have ended. Its id is not another's, because the child was not waited for.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// The id of the process and of the group that it leads.
fn process_id(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// The exit that the kernel reports.
pub(super) fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

impl Supervisor {
    /// The command of a request, before its standard streams are set.
    pub(super) fn command(&self, start: &Start<'_>, terminal: bool) -> Option<Command> {
        let (program, arguments) = start.argv.split_first()?;
        let mut command = Command::new(program);
        let workdir = start.workdir.or(self.spec.workdir.as_deref());
        command
            .args(arguments)
            .env_clear()
            .envs(ENVIRONMENT)
            .envs(self.spec.env.iter().map(|(name, value)| (name, value)))
            .envs(start.env.iter().map(|(name, value)| (name, value)))
            .current_dir(workdir.unwrap_or("/work"));
        spawn::limit_command(&mut command, &self.spec, terminal);
        Some(command)
    }

    /// Runs a command to its end, or kills its process group at the time-out.
    pub(super) fn exec(
        &mut self,
        start: &Start<'_>,
        input: &[u8],
        timeout: Duration,
        max_output: usize,
    ) -> Operation<(Reply, Vec<u8>)> {
        let began = Instant::now();
        let Some(mut command) = self.command(start, false) else {
            return Ok(Err(no_program()));
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return Ok(not_run(start, &error).map(|(code, words)| {
                    let reply = Reply::Exec {
                        exit: Exit::Code(code),
                        stdout: 0,
                        truncated: false,
                        wall_ms: 0,
                    };
                    (reply, words.into_bytes())
                }));
            }
        };
        let mut running = Running::new(child)?;
        let mut streams = Streams::new(&mut running.child, max_output)?;
        let exit = self.follow(&mut running, &mut streams, input, began + timeout)?;
        streams.read_rest();
        let (stdout, stderr, truncated) =
            share(streams.stdout.kept, streams.stderr.kept, max_output);
        let reply = Reply::Exec {
            exit,
            stdout: stdout.len(),
            truncated,
            wall_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        Ok(Ok((reply, [stdout, stderr].concat())))
    }

    /// Moves input and output until the command has ended.
    fn follow(
        &mut self,
        running: &mut Running,
        streams: &mut Streams,
        mut input: &[u8],
        until: Instant,
    ) -> Result<Exit, Stop> {
        let mut killed = None;
        loop {
            if input.is_empty() {
                streams.stdin = None;
            }
            let mut poller = Poller::default();
            let ended = poller.add(&running.pidfd, PollFlags::IN);
            let mut add = |fd: Option<OwnedFd>, events| fd.map(|fd| poller.add_owned(fd, events));
            let stdin = add(clone(streams.stdin.as_ref())?, PollFlags::OUT);
            let stdout = add(clone(streams.stdout.fd.as_ref())?, PollFlags::IN);
            let stderr = add(clone(streams.stderr.fd.as_ref())?, PollFlags::IN);
            let ready = self.wait(poller, until)?;
            if stdin.is_some_and(|event| ready.ready(event)) {
                input = streams.write(input);
            }
            if stdout.is_some_and(|event| ready.ready(event)) {
                streams.stdout.read();
            }
            if stderr.is_some_and(|event| ready.ready(event)) {
                streams.stderr.read();
            }
            if ready.ready(ended) {
                let status = running.child.wait()?;
                if killed.is_some() {
                    self.await_group_end(running)?;
                }
                return Ok(killed.unwrap_or_else(|| exit_of(status)));
            }
            if self.enforce_memory() {
                killed.get_or_insert(Exit::OutOfMemory);
            }
            if Instant::now() >= until && killed.is_none() {
                running.kill();
                killed = Some(Exit::TimedOut);
            }
        }
    }

    /// Waits until the processes of a killed command have ended too, so that they take nothing from the limits of the next
    /// one. The command itself must have been waited for: it would count until then.
    fn await_group_end(&mut self, running: &Running) -> Result<(), Stop> {
        let until = Instant::now() + KILL_TIMEOUT;
        while let Some(group) = process_id(&running.child)
            && test_kill_process_group(group).is_ok()
            && Instant::now() < until
        {
            self.wait(Poller::default(), Instant::now() + KILL_INTERVAL)?;
        }
        Ok(())
    }

    /// Waits until the command has ended, or kills it.
    pub(super) fn finish(&mut self, running: &mut Running, until: Instant) -> Result<Exit, Stop> {
        while Instant::now() < until {
            let mut poller = Poller::default();
            let ended = poller.add(&running.pidfd, PollFlags::IN);
            if self.wait(poller, until)?.ready(ended) {
                return Ok(exit_of(running.child.wait()?));
            }
        }
        running.kill();
        running.child.wait()?;
        Ok(Exit::TimedOut)
    }

    /// Kills every process of the machine except the first.
    pub(super) fn kill_all(&mut self) {
        let argv = ["/bin/sh", "-c", "kill -9 -1"].map(str::to_owned);
        let start = Start {
            argv: &argv,
            env: &[],
            workdir: Some("/"),
        };
        if let Some(mut command) = self.command(&start, false) {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            // If it cannot be started now, the next check tries again.
            let _ = command.status();
        }
    }
}

/// A request without a program.
pub(super) fn no_program() -> SandboxError {
    SandboxError::Denied("argv is empty: it needs a program".to_owned())
}

/// Exit code and words of a command that cannot be started, as a shell gives them.
///
/// # Errors
/// The host is to blame.
pub(super) fn not_run(start: &Start<'_>, error: &io::Error) -> Result<(i32, String), SandboxError> {
    let program = start.argv.first().map_or("", String::as_str);
    let words = format!("{program}: {error}\n");
    match error.kind() {
        io::ErrorKind::NotFound => Ok((127, words)),
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => Err(SandboxError::Unavailable(
            format!("the host cannot start a process: {error}"),
        )),
        _ => Ok((126, words)),
    }
}

fn clone(fd: Option<&impl AsFd>) -> io::Result<Option<OwnedFd>> {
    fd.map(|fd| fd.as_fd().try_clone_to_owned()).transpose()
}

/// Makes reads and writes return instead of waiting.
pub(super) fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// The ends of the pipes of a command.
struct Streams {
    stdin: Option<ChildStdin>,
    stdout: Stream,
    stderr: Stream,
}

struct Stream {
    fd: Option<std::fs::File>,
    kept: HeadTail,
}

impl Streams {
    fn new(child: &mut Child, max_output: usize) -> io::Result<Self> {
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        for fd in [
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ]
        .into_iter()
        .flatten()
        {
            set_nonblocking(&fd)?;
        }
        let stream = |fd: Option<OwnedFd>| Stream {
            fd: fd.map(std::fs::File::from),
            kept: HeadTail::new(max_output),
        };
        Ok(Self {
            stdin,
            stdout: stream(stdout),
            stderr: stream(stderr),
        })
    }

    /// Writes what the pipe takes and returns the rest; nothing if the command has closed it.
    fn write<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let Some(stdin) = &mut self.stdin else {
            return &[];
        };
        match stdin.write(input) {
            Ok(written) => input.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => input,
            Err(_) => &[],
        }
    }

    fn read_rest(&mut self) {
        for stream in [&mut self.stdout, &mut self.stderr] {
            for _ in 0..LAST_READS {
                if !stream.read() {
                    break;
                }
            }
        }
    }
}

impl Stream {
    /// Reads once; returns whether there may be more.
    fn read(&mut self) -> bool {
        let Some(fd) = &mut self.fd else {
            return false;
        };
        let mut buffer = vec![0; READ];
        match fd.read(&mut buffer) {
            Ok(length) if length > 0 => {
                self.kept.push(buffer.get(..length).unwrap_or_default());
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            _ => {
                self.fd = None;
                false
            }
        }
    }
}
