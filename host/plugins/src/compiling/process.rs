//! Has a component compiled by another process and waits for it no longer than it may take.
//!
//! The other process limits its own memory and CPU time. From here come what it cannot be trusted
//! with: the clock, the amount of output, and its end, whatever becomes of this call.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::command::CompilerCommand;
use super::limits::{CompileResource, CompilerEnd};
use super::order::{INVALID, NO_MEMORY, Order};
use super::trusted::CompiledCode;
use crate::error::PluginError;
use crate::printable::one_line;

/// Bytes that are kept of what a compiler says about a component.
const WORDS: u64 = 8 << 10;

/// Compiles a component in a process of its own.
///
/// # Errors
/// What the compiler found wrong with the component, or which limit it met, or how it failed.
pub(super) fn compile(
    command: &CompilerCommand,
    order: &Order,
    component: &[u8],
) -> Result<CompiledCode, PluginError> {
    let broken = |error: io::Error| {
        PluginError::Compiler(format!(
            "{} cannot be run: {error}",
            command.program.display()
        ))
    };
    let mut running = Running::start(command).map_err(broken)?;
    let heard = running.hear(order, component).map_err(broken)?;
    let status = running.end().map_err(broken)?;
    conclude(heard, status, order, component.len())
}

/// What came out, and why it was stopped if it was.
struct Heard {
    code: Vec<u8>,
    said: Vec<u8>,
    stopped: Option<CompileResource>,
}

enum Event {
    Ended,
    TooMuchCode,
}

/// A compiler that has not been waited for. Dropping it ends it, and whatever it started.
struct Running(Option<Child>);

impl Running {
    fn start(command: &CompilerCommand) -> io::Result<Running> {
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Running(Some(child)))
    }

    /// Shows it the order and the component, and listens until it has ended or has to.
    fn hear(&mut self, order: &Order, component: &[u8]) -> io::Result<Heard> {
        let line = order.line()?;
        let (on_code, most) = order.limits.on_code(component.len());
        let gone = || io::Error::other("its pipes are gone");
        let child = self.0.as_mut().ok_or_else(gone)?;
        let mut stdin = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        let group = group(child).ok_or_else(gone)?;
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let listen = || {
                let ended = tell.clone();
                thread(scope, move || {
                    wait(group);
                    // Nobody listens any more when it was stopped.
                    let _ = ended.send(Event::Ended);
                })?;
                thread(scope, move || {
                    // A compiler that has seen enough closes its end.
                    let _ = stdin
                        .write_all(&line)
                        .and_then(|()| stdin.write_all(component));
                })?;
                let code = thread(scope, move || code(stdout, most, &tell))?;
                let said = thread(scope, move || words(stderr))?;
                Ok((code, said))
            };
            let listening: io::Result<_> = listen();
            let stopped = match &listening {
                Ok(_) => match told.recv_timeout(Duration::from_millis(order.limits.wall_ms)) {
                    Ok(Event::Ended) => None,
                    Ok(Event::TooMuchCode) => Some(on_code),
                    Err(_) => Some(CompileResource::WallMs),
                },
                Err(_) => None,
            };
            // It is not reaped yet, so the number is still its own. Ends what holds its pipes, if
            // anything does.
            let _ = kill_process_group(group, Signal::KILL);
            let (code, said) = listening?;
            let (code, too_much) = joined(code)?;
            Ok(Heard {
                code,
                said: joined(said)?,
                stopped: stopped.or(too_much.then_some(on_code)),
            })
        })
    }

    fn end(mut self) -> io::Result<ExitStatus> {
        match self.0.take() {
            Some(mut child) => child.wait(),
            None => Err(io::Error::other("it was waited for already")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            if let Some(group) = group(&child) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
        }
    }
}

/// The process leads a group of its own, which has its number.
fn group(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let builder = Builder::new().name("plugin-compiler".to_owned());
    builder.spawn_scoped(scope, work)
}

fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a thread that read its output panicked")))
}

/// Waits until the process has ended and leaves it to be reaped.
fn wait(pid: Pid) {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(
        waitid(WaitId::Pid(pid), ended),
        Err(rustix::io::Errno::INTR)
    ) {}
}

/// Reads the code, and whether there was more of it than may be.
fn code(from: impl Read, most: u64, tell: &Sender<Event>) -> io::Result<(Vec<u8>, bool)> {
    let mut code = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut code)?;
    let too_much = code.len() as u64 > most;
    if too_much {
        let _ = tell.send(Event::TooMuchCode);
    }
    Ok((code, too_much))
}

/// Keeps the start and lets the rest go by, so that nothing waits for room.
fn words(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    from.by_ref().take(WORDS).read_to_end(&mut kept)?;
    io::copy(&mut from, &mut io::sink())?;
    Ok(kept)
}

fn conclude(
    heard: Heard,
    status: ExitStatus,
    order: &Order,
    component: usize,
) -> Result<CompiledCode, PluginError> {
    let Heard {
        code,
        said,
        stopped,
    } = heard;
    let said = one_line(String::from_utf8_lossy(&said).trim(), WORDS as usize);
    let exhausted = |resource| PluginError::CompilerLimit {
        resource,
        limit: order.limits.on(resource, component),
    };
    if let Some(resource) = stopped {
        return Err(exhausted(resource));
    }
    let ended = match (status.code(), status.signal()) {
        (Some(0), _) => {
            return CompiledCode::from_compiler(code)
                .ok_or_else(|| PluginError::Compiler("what it wrote is no code".to_owned()));
        }
        (Some(code), _) if code == i32::from(INVALID) => return Err(PluginError::Invalid(said)),
        (Some(code), _) if code == i32::from(NO_MEMORY) => {
            return Err(exhausted(CompileResource::MemoryBytes));
        }
        (Some(code), _) => CompilerEnd::Code(code),
        (None, Some(signal)) if signal == Signal::XCPU.as_raw() => {
            return Err(exhausted(CompileResource::CpuSeconds));
        }
        // What Rust programs end with when an allocation fails.
        (None, Some(signal))
            if signal == Signal::ABORT.as_raw() && said.contains("memory allocation of") =>
        {
            return Err(exhausted(CompileResource::MemoryBytes));
        }
        (None, signal) => CompilerEnd::Signal(signal.unwrap_or_default()),
    };
    Err(PluginError::CompilerDied {
        ended,
        limits: order.limits,
        said,
    })
}
