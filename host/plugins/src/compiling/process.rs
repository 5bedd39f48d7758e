//! Runs the compiler subprocess and enforces its limits from outside.
//!
//! The subprocess limits its own memory and CPU time. This module enforces the limits that it cannot be trusted with:
//! wall time and output size. It also kills the subprocess when the call ends for whatever reason.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::command::CompilerCommand;
use super::limits::{self, CompileResource, CompilerExit};
use super::request::{CompileRequest, EXIT_INVALID, EXIT_NO_MEMORY};
use super::trusted::CompiledCode;
use crate::error::PluginError;
use crate::printable::one_line;

/// Bytes of the compiler's standard error that are kept; the rest is discarded.
const STDERR_BYTES: u64 = 8 << 10;

/// Compiles a component in a subprocess.
///
/// # Errors
/// When the component is invalid, exceeds a limit, or the compiler fails.
pub(super) fn compile(
    command: &CompilerCommand,
    request: &CompileRequest,
    component: &[u8],
) -> Result<CompiledCode, PluginError> {
    let run_error = |error: io::Error| {
        PluginError::Compiler(format!("cannot run {}: {error}", command.program.display()))
    };
    let mut process = CompilerProcess::start(command).map_err(run_error)?;
    let output = process.communicate(request, component).map_err(run_error)?;
    let status = process.wait().map_err(run_error)?;
    interpret_exit(output, status, request, component.len())
}

/// The output of the compiler, and the limit that made us kill it, if any.
struct CompilerOutput {
    code: Vec<u8>,
    stderr: Vec<u8>,
    exceeded: Option<CompileResource>,
}

enum Event {
    Exited,
    TooMuchCode,
}

/// A compiler process that has not been reaped. Dropping it kills its process group.
struct CompilerProcess(Option<Child>);

impl CompilerProcess {
    fn start(command: &CompilerCommand) -> io::Result<CompilerProcess> {
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(CompilerProcess(Some(child)))
    }

    /// Writes the request and the component, and reads the output until the process exits or exceeds a limit.
    fn communicate(
        &mut self,
        request: &CompileRequest,
        component: &[u8],
    ) -> io::Result<CompilerOutput> {
        let line = request.to_line()?;
        let (code_resource, max_code) = limits::code_limit(&request.limits, component.len());
        let no_pipes = || io::Error::other("its pipes are not available");
        let child = self.0.as_mut().ok_or_else(no_pipes)?;
        let mut stdin = child.stdin.take().ok_or_else(no_pipes)?;
        let stdout = child.stdout.take().ok_or_else(no_pipes)?;
        let stderr = child.stderr.take().ok_or_else(no_pipes)?;
        let group = process_group(child).ok_or_else(no_pipes)?;
        let (sender, events) = mpsc::channel();
        std::thread::scope(|scope| {
            let start_threads = || {
                let exit_sender = sender.clone();
                spawn(scope, move || {
                    wait_for_exit(group);
                    // The receiver is gone if the process was killed.
                    let _ = exit_sender.send(Event::Exited);
                })?;
                spawn(scope, move || {
                    // Fails if the compiler exits without reading everything.
                    let _ = stdin
                        .write_all(&line)
                        .and_then(|()| stdin.write_all(component));
                })?;
                let code = spawn(scope, move || read_code(stdout, max_code, &sender))?;
                let stderr = spawn(scope, move || read_stderr(stderr))?;
                Ok((code, stderr))
            };
            let readers: io::Result<_> = start_threads();
            let exceeded = match &readers {
                Ok(_) => match events.recv_timeout(request.limits.wall_time) {
                    Ok(Event::Exited) => None,
                    Ok(Event::TooMuchCode) => Some(code_resource),
                    Err(_) => Some(CompileResource::WallMs),
                },
                Err(_) => None,
            };
            // The process is not reaped yet, so the id still belongs to it. This also kills any child processes that
            // hold the pipes open.
            let _ = kill_process_group(group, Signal::KILL);
            let (code, stderr) = readers?;
            let (code, too_much) = join(code)?;
            Ok(CompilerOutput {
                code,
                stderr: join(stderr)?,
                exceeded: exceeded.or(too_much.then_some(code_resource)),
            })
        })
    }

    fn wait(mut self) -> io::Result<ExitStatus> {
        match self.0.take() {
            Some(mut child) => child.wait(),
            None => Err(io::Error::other("the process was already reaped")),
        }
    }
}

impl Drop for CompilerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            if let Some(group) = process_group(&child) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
        }
    }
}

/// The process leads its own group, which has the same id.
fn process_group(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let builder = Builder::new().name("plugin-compiler".to_owned());
    builder.spawn_scoped(scope, work)
}

fn join<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a thread that reads its output panicked")))
}

/// Waits until the process has exited, without reaping it.
fn wait_for_exit(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(
        waitid(WaitId::Pid(pid), options),
        Err(rustix::io::Errno::INTR)
    ) {}
}

/// Reads the code. Stops after `max` bytes and returns whether there was more.
fn read_code(from: impl Read, max: u64, events: &Sender<Event>) -> io::Result<(Vec<u8>, bool)> {
    let mut code = Vec::new();
    from.take(max.saturating_add(1)).read_to_end(&mut code)?;
    let too_much = code.len() as u64 > max;
    if too_much {
        let _ = events.send(Event::TooMuchCode);
    }
    Ok((code, too_much))
}

/// Reads to the end, so that the writer never blocks, but keeps only the start.
fn read_stderr(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    from.by_ref().take(STDERR_BYTES).read_to_end(&mut head)?;
    io::copy(&mut from, &mut io::sink())?;
    Ok(head)
}

fn interpret_exit(
    output: CompilerOutput,
    status: ExitStatus,
    request: &CompileRequest,
    component: usize,
) -> Result<CompiledCode, PluginError> {
    let CompilerOutput {
        code,
        stderr,
        exceeded,
    } = output;
    let stderr = one_line(
        String::from_utf8_lossy(&stderr).trim(),
        STDERR_BYTES as usize,
    );
    let exhausted = |resource| PluginError::CompilerLimit {
        resource,
        limit: limits::limit(&request.limits, resource, component),
    };
    if let Some(resource) = exceeded {
        return Err(exhausted(resource));
    }
    let exit = match (status.code(), status.signal()) {
        (Some(0), _) => {
            return CompiledCode::from_compiler(code).ok_or_else(|| {
                PluginError::Compiler("the compiler's output is not compiled code".to_owned())
            });
        }
        (Some(code), _) if code == i32::from(EXIT_INVALID) => {
            return Err(PluginError::Invalid(stderr));
        }
        (Some(code), _) if code == i32::from(EXIT_NO_MEMORY) => {
            return Err(exhausted(CompileResource::MemoryBytes));
        }
        (Some(code), _) => CompilerExit::Code(code),
        (None, Some(signal)) if signal == Signal::XCPU.as_raw() => {
            return Err(exhausted(CompileResource::CpuSeconds));
        }
        // A Rust program aborts with this message when an allocation fails.
        (None, Some(signal))
            if signal == Signal::ABORT.as_raw() && stderr.contains("memory allocation of") =>
        {
            return Err(exhausted(CompileResource::MemoryBytes));
        }
        (None, Some(signal)) => CompilerExit::Signal(signal),
        (None, None) => unreachable!("a process that has ended has an exit code or a signal"),
    };
    Err(PluginError::CompilerCrashed {
        exit,
        limits: request.limits,
        stderr,
    })
}
