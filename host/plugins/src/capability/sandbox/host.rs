//! The host functions of `sandbox`.
//!
//! Machines and terminals are resources of the store's table, so they end when the guest drops them or the store is
//! dropped, whichever comes first.

use std::time::Duration;

use clawhost_sandbox::{
    Command, Exit, Machine, Owner, SandboxError, Sandboxes, Screen, Spec, Terminal,
};
use wasmtime::component::Resource;

use super::MAX_MACHINES;
use crate::bindings::sandbox;
use crate::store::CallState;
use crate::thread_pool::spawn_abort_on_drop;

/// What a command leaves of the call's wall time, so that its time-out ends it before the call's.
const RESERVE: Duration = Duration::from_millis(500);

type Answer<T> = wasmtime::Result<Result<T, sandbox::Error>>;

impl CallState {
    /// Runs an operation within the wall time of the call.
    async fn run_sandbox_work<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = Result<T, SandboxError>> + Send + 'static,
    ) -> Result<T, sandbox::Error> {
        let left = Duration::from_millis(self.wall_left_ms());
        match spawn_abort_on_drop(tokio::time::timeout(left, work)).await {
            Ok(Ok(answer)) => answer.map_err(error_to_guest),
            Ok(Err(_)) => Err(sandbox::Error::Timeout),
            Err(_) => Err(sandbox::Error::Unavailable(
                "the operation failed".to_owned(),
            )),
        }
    }

    /// The machines, if the store may have another one.
    fn sandboxes(&self) -> Result<Sandboxes, sandbox::Error> {
        let Some(grant) = &self.sandbox else {
            return Err(sandbox::Error::Denied("sandbox is not granted".to_owned()));
        };
        if grant.live >= MAX_MACHINES {
            return Err(sandbox::Error::QuotaExceeded(format!(
                "{MAX_MACHINES} machines are running; drop one"
            )));
        }
        Ok(grant.sandboxes.clone())
    }

    fn sandbox_owner(&self) -> Owner {
        Owner {
            run: self.identity.run_id.clone(),
            episode: self.identity.call_id(),
        }
    }

    fn push_machine(&mut self, machine: Machine) -> wasmtime::Result<Resource<Machine>> {
        let machine = self.table.push(machine)?;
        if let Some(grant) = &mut self.sandbox {
            grant.live += 1;
        }
        Ok(machine)
    }

    /// The time that a command may take: what it asks for, within the wall time of the call.
    fn command_time(&self, asked_ms: u32) -> Duration {
        let left = Duration::from_millis(self.wall_left_ms()).saturating_sub(RESERVE);
        left.min(Duration::from_millis(u64::from(asked_ms)))
    }
}

impl sandbox::Host for CallState {
    async fn create(&mut self, spec: sandbox::Spec) -> Answer<Resource<Machine>> {
        self.meter.host_call()?;
        let sandboxes = match self.sandboxes() {
            Ok(sandboxes) => sandboxes,
            Err(error) => return Ok(Err(error)),
        };
        if spec.image.is_some() {
            let reason = "profiles of bubblewrap have no images".to_owned();
            return Ok(Err(sandbox::Error::Denied(reason)));
        }
        let owner = self.sandbox_owner();
        let spec = Spec {
            profile: spec.profile,
            env: spec.env,
            workdir: spec.workdir,
        };
        let work = async move { sandboxes.create(owner, spec).await };
        match self.run_sandbox_work(work).await {
            Ok(machine) => self.push_machine(machine).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn restore(&mut self, snapshot: String) -> Answer<Resource<Machine>> {
        self.meter.host_call()?;
        let sandboxes = match self.sandboxes() {
            Ok(sandboxes) => sandboxes,
            Err(error) => return Ok(Err(error)),
        };
        let owner = self.sandbox_owner();
        let work = async move { sandboxes.restore(owner, &snapshot).await };
        match self.run_sandbox_work(work).await {
            Ok(machine) => self.push_machine(machine).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }
}

impl sandbox::HostMachine for CallState {
    async fn exec(
        &mut self,
        machine: Resource<Machine>,
        command: sandbox::Command,
    ) -> Answer<sandbox::Output> {
        self.meter.host_call()?;
        let machine = self.table.get(&machine)?.clone();
        let command = Command {
            argv: command.argv,
            stdin: command.stdin,
            env: command.env,
            workdir: command.workdir,
            timeout: self.command_time(command.timeout_ms),
            max_output: usize::try_from(command.max_output).unwrap_or(usize::MAX),
        };
        let work = async move { machine.exec(command).await };
        let output = self.run_sandbox_work(work).await;
        Ok(output.map(|output| sandbox::Output {
            exit: exit_to_guest(output.exit),
            stdout: output.stdout,
            stderr: output.stderr,
            truncated: output.truncated,
            wall_ms: output.wall_ms,
        }))
    }

    async fn open_terminal(
        &mut self,
        machine: Resource<Machine>,
        argv: Vec<String>,
        rows: u16,
        cols: u16,
    ) -> Answer<Resource<Terminal>> {
        self.meter.host_call()?;
        let machine = self.table.get(&machine)?.clone();
        let work = async move { machine.open_terminal(argv, rows, cols).await };
        match self.run_sandbox_work(work).await {
            Ok(terminal) => Ok(Ok(self.table.push(terminal)?)),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn read_file(
        &mut self,
        machine: Resource<Machine>,
        path: String,
        max_bytes: u32,
    ) -> Answer<Vec<u8>> {
        self.meter.host_call()?;
        let machine = self.table.get(&machine)?.clone();
        let max = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let work = async move { machine.read_file(&path, max).await };
        Ok(self.run_sandbox_work(work).await)
    }

    async fn write_file(
        &mut self,
        machine: Resource<Machine>,
        path: String,
        data: Vec<u8>,
    ) -> Answer<()> {
        self.meter.host_call()?;
        let machine = self.table.get(&machine)?.clone();
        let work = async move { machine.write_file(&path, &data).await };
        Ok(self.run_sandbox_work(work).await)
    }

    async fn snapshot(&mut self, machine: Resource<Machine>) -> Answer<String> {
        self.meter.host_call()?;
        let machine = self.table.get(&machine)?.clone();
        let work = async move { machine.snapshot().await };
        let snapshot = self.run_sandbox_work(work).await;
        if let (Ok(snapshot), Some(grant)) = (&snapshot, &mut self.sandbox) {
            grant.snapshots.push(snapshot.clone());
        }
        Ok(snapshot)
    }

    async fn drop(&mut self, machine: Resource<Machine>) -> wasmtime::Result<()> {
        self.table.delete(machine)?;
        if let Some(grant) = &mut self.sandbox {
            grant.live = grant.live.saturating_sub(1);
        }
        Ok(())
    }
}

impl sandbox::HostTerminal for CallState {
    async fn send(&mut self, terminal: Resource<Terminal>, input: Vec<u8>) -> Answer<()> {
        self.meter.host_call()?;
        let terminal = self.table.get(&terminal)?.clone();
        let work = async move { terminal.send(&input).await };
        Ok(self.run_sandbox_work(work).await)
    }

    async fn wait(
        &mut self,
        terminal: Resource<Terminal>,
        quiet_ms: u32,
        timeout_ms: u32,
    ) -> Answer<sandbox::Screen> {
        self.meter.host_call()?;
        let terminal = self.table.get(&terminal)?.clone();
        let quiet = Duration::from_millis(u64::from(quiet_ms));
        let timeout = self.command_time(timeout_ms);
        let work = async move { terminal.wait(quiet, timeout).await };
        Ok(self.run_sandbox_work(work).await.map(screen_to_guest))
    }

    async fn resize(&mut self, terminal: Resource<Terminal>, rows: u16, cols: u16) -> Answer<()> {
        self.meter.host_call()?;
        let terminal = self.table.get(&terminal)?.clone();
        let work = async move { terminal.resize(rows, cols).await };
        Ok(self.run_sandbox_work(work).await)
    }

    async fn drop(&mut self, terminal: Resource<Terminal>) -> wasmtime::Result<()> {
        let terminal = self.table.delete(terminal)?;
        // The machine may have ended, and its terminals with it.
        let _ = self
            .run_sandbox_work(async move { terminal.close().await })
            .await;
        Ok(())
    }
}

fn exit_to_guest(exit: Exit) -> sandbox::Exit {
    match exit {
        Exit::Code(code) => sandbox::Exit::Code(code),
        Exit::Signal(signal) => sandbox::Exit::Signal(signal),
        Exit::TimedOut => sandbox::Exit::TimedOut,
        Exit::OutOfMemory => sandbox::Exit::OutOfMemory,
    }
}

fn screen_to_guest(screen: Screen) -> sandbox::Screen {
    sandbox::Screen {
        rows: screen.rows,
        cols: screen.cols,
        text: screen.text,
        cursor: screen.cursor,
        exited: screen.exited.map(exit_to_guest),
    }
}

fn error_to_guest(error: SandboxError) -> sandbox::Error {
    match error {
        SandboxError::Denied(reason) => sandbox::Error::Denied(reason),
        SandboxError::NotFound(reason) => sandbox::Error::NotFound(reason),
        SandboxError::QuotaExceeded(reason) => sandbox::Error::QuotaExceeded(reason),
        SandboxError::Timeout => sandbox::Error::Timeout,
        SandboxError::Unavailable(reason) => sandbox::Error::Unavailable(reason),
    }
}
