//! The supervisor of a machine: a process of its own, one per machine, which the launcher forks.
//!
//! It starts bubblewrap, joins the namespaces that bubblewrap made, gives up every capability, and then does what the
//! host asks for: each command is a child of the supervisor and is born in the machine, and files are opened by the
//! supervisor itself, whose root directory is the machine's. So nothing that runs in the machine is asked to report
//! anything: exit codes come from the kernel, and output comes through pipes.
//!
//! The supervisor's own process is not in the process namespace of the machine. What runs there cannot see, signal or
//! trace it, nor the short-lived child before it executes a command.
//!
//! The supervisor has one thread, which the kernel requires for joining a user namespace, and blocks only in `poll`. It
//! ends, and the machine with it, when the host closes the socket, also by being killed.

mod archive;
mod browser;
mod bwrap;
mod enter;
mod exec;
mod files;
mod launcher;
mod memory;
mod poll;
mod spawn;
mod terminal;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::error::SandboxError;
use crate::protocol::{self, MachineSpec, Reply, Request};
pub(crate) use archive::TIMEOUT as ARCHIVE_TIMEOUT;
use bwrap::Machine;
use exec::Running;
pub use launcher::supervise_machines;
use poll::Poller;
use terminal::Terminal;

/// Supervises one machine, until it ends or the host closes the socket.
fn supervise(mut socket: UnixStream) -> io::Result<()> {
    let (request, _) = protocol::read(&mut socket)?;
    let Request::Start(spec) = request else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let machine = match Machine::start(&spec) {
        Ok(machine) => machine,
        Err(reason) => {
            let failed = Reply::Failed(SandboxError::Unavailable(reason));
            return protocol::write(&mut socket, &failed, &[]);
        }
    };
    let mut supervisor = Supervisor::new(socket, machine, spec);
    protocol::write(&mut supervisor.socket, &Reply::Done, &[])?;
    let stop = supervisor.serve();
    if let Stop::Ended(reason) = &stop {
        // The host may be gone as well.
        let _ = protocol::write(&mut supervisor.socket, &Reply::Ended(reason.clone()), &[]);
    }
    drop(supervisor.terminals);
    drop(supervisor.browser);
    supervisor.machine.end();
    Ok(())
}

/// Why the supervisor stops.
enum Stop {
    /// The host closed the socket, or it failed.
    HostGone,
    /// The machine has ended.
    Ended(String),
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Stop::HostGone
    }
}

/// The result of an operation. The outer error ends the machine.
type Operation<T> = Result<Result<T, SandboxError>, Stop>;

struct Supervisor {
    socket: UnixStream,
    machine: Machine,
    spec: MachineSpec,
    terminals: BTreeMap<u32, Terminal>,
    next_terminal: u32,
    browser: Option<Running>,
    deadline: Instant,
    memory_checked: Instant,
}

/// Time between two checks of the memory of all processes.
const MEMORY_INTERVAL: Duration = Duration::from_millis(250);

impl Supervisor {
    fn new(socket: UnixStream, machine: Machine, spec: MachineSpec) -> Self {
        let now = Instant::now();
        Self {
            socket,
            machine,
            terminals: BTreeMap::new(),
            next_terminal: 0,
            browser: None,
            deadline: now + Duration::from_millis(spec.deadline_ms),
            memory_checked: now,
            spec,
        }
    }

    fn serve(&mut self) -> Stop {
        loop {
            if let Err(stop) = self.wait_for_request().and_then(|()| self.answer()) {
                return stop;
            }
        }
    }

    /// Waits until the host has written something.
    fn wait_for_request(&mut self) -> Result<(), Stop> {
        let idle = Instant::now() + Duration::from_millis(self.spec.ttl_ms);
        loop {
            let mut poller = Poller::default();
            let socket = self.socket.as_fd().try_clone_to_owned()?;
            let request = poller.add_owned(socket, PollFlags::IN);
            if self.wait(poller, idle)?.ready(request) {
                return Ok(());
            }
            if self.browser.is_some() {
                // It works between requests.
                self.enforce_memory();
            }
            if Instant::now() >= idle {
                return Err(Stop::Ended(
                    "the machine was not used for longer than sandbox.profiles.NAME.ttl".to_owned(),
                ));
            }
        }
    }

    /// Waits for one of the events, for output of terminals, or until `until`; may return earlier. Fails when the host
    /// is gone, the machine has ended or its deadline is reached.
    fn wait(&mut self, poller: Poller<'_>, until: Instant) -> Result<poll::Ready, Stop> {
        if Instant::now() >= self.deadline {
            return Err(Stop::Ended(
                "the machine is older than sandbox.profiles.NAME.deadline".to_owned(),
            ));
        }
        let mut poller = poller;
        let socket = self.socket.as_fd().try_clone_to_owned()?;
        let init = self.machine.init.as_fd().try_clone_to_owned()?;
        let hangup = poller.add_owned(socket, PollFlags::RDHUP);
        let ended = poller.add_owned(init, PollFlags::IN);
        let mut outputs = Vec::new();
        for (id, terminal) in &self.terminals {
            if let Some(output) = terminal.output() {
                let output: OwnedFd = output.try_clone_to_owned()?;
                outputs.push((*id, poller.add_owned(output, PollFlags::IN)));
            }
        }
        let tick = self.memory_checked + MEMORY_INTERVAL;
        let ready = poller.wait(until.min(self.deadline).min(tick))?;
        for (id, output) in outputs {
            if let Some(terminal) = self.terminals.get_mut(&id).filter(|_| ready.ready(output)) {
                terminal.read();
            }
        }
        if ready.ready(hangup) {
            return Err(Stop::HostGone);
        }
        if ready.ready(ended) {
            return Err(Stop::Ended(
                "the machine has ended: its first process was killed from inside".to_owned(),
            ));
        }
        Ok(ready)
    }

    /// Kills every process of the machine if together they use more memory than allowed.
    fn enforce_memory(&mut self) -> bool {
        if self.memory_checked.elapsed() < MEMORY_INTERVAL {
            return false;
        }
        let exceeded = memory::resident() > self.spec.memory;
        if exceeded {
            self.kill_all();
        }
        self.memory_checked = Instant::now();
        exceeded
    }

    fn answer(&mut self) -> Result<(), Stop> {
        let (request, body) = protocol::read(&mut self.socket)?;
        let (reply, body) = match request {
            Request::Exec {
                argv,
                env,
                workdir,
                timeout_ms,
                max_output,
            } => {
                let command = exec::Start {
                    argv: &argv,
                    env: &env,
                    workdir: workdir.as_deref(),
                };
                let timeout = Duration::from_millis(timeout_ms);
                flatten(self.exec(&command, &body, timeout, max_output)?)
            }
            Request::OpenTerminal { argv, rows, cols } => {
                flatten(self.open_terminal(&argv, rows, cols))
            }
            Request::Send { terminal } => flatten(self.send(terminal, &body)?),
            Request::Wait {
                terminal,
                quiet_ms,
                timeout_ms,
            } => flatten(self.wait_for_screen(terminal, quiet_ms, timeout_ms)?),
            Request::Resize {
                terminal,
                rows,
                cols,
            } => flatten(self.resize(terminal, rows, cols)),
            Request::CloseTerminal { terminal } => {
                self.terminals.remove(&terminal);
                (Reply::Done, Vec::new())
            }
            Request::Read { path, max_bytes } => flatten(files::read(&path, max_bytes)),
            Request::Write { path } => flatten(files::write(&path, &body)),
            Request::Snapshot { max_bytes } => flatten(self.snapshot(max_bytes)?),
            Request::Restore => flatten(self.restore()?),
            Request::OpenBrowser { argv, env } => flatten(self.open_browser(argv, &env)),
            Request::Touch => (Reply::Done, Vec::new()),
            Request::Start(_) | Request::Chunk => return Err(Stop::HostGone),
        };
        self.enforce_memory();
        Ok(protocol::write(&mut self.socket, &reply, &body)?)
    }
}

fn flatten(result: Result<(Reply, Vec<u8>), SandboxError>) -> (Reply, Vec<u8>) {
    result.unwrap_or_else(|error| (Reply::Failed(error), Vec::new()))
}
