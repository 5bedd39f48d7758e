//! The compiler's own process.
//!
//! It takes its limits upon itself before it sees a byte of the component, so that the process that
//! started it needs no unsafe code between fork and exec. It has nothing to lose: an empty
//! environment, no file to write, no more than a handful to open, and it is the first that the system
//! ends when memory is short. What it cannot do is defend itself against a fault of the code generator
//! that would let a component choose the machine code that comes out; the limits are against
//! components that are expensive, not against a compiler that is wrong.

use std::io::{self, BufReader, Read, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wasmtime::Engine;

use super::limits::CompileLimits;
use super::order::{BROKEN, INVALID, NO_MEMORY, Order};
use super::told;
use crate::engine;

/// Threads that compile. Each reserves address space, so their number must not follow the machine's.
const THREADS: usize = 4;
/// Files that may be open: three are, and the runtime looks at a few more.
const FILES: u64 = 32;
/// How far behind serving its threads stand.
const NICE: i32 = 10;

/// Compiles the component on standard input and writes the code to standard output: the other end of
/// [`crate::CompilerCommand`]. The process is good for nothing else afterwards, because it has limited
/// itself for good.
pub fn compile_component() -> ExitCode {
    let done = compile(&mut BufReader::new(io::stdin()), &mut io::stdout());
    ExitCode::from(match done {
        Ok(()) => 0,
        Err((code, reason)) => {
            // Nobody is left to tell when that is closed.
            let _ = writeln!(io::stderr(), "{reason}");
            code
        }
    })
}

type Failed = (u8, String);

fn compile(input: &mut BufReader<io::Stdin>, output: &mut io::Stdout) -> Result<(), Failed> {
    let broken = |what: &str, error: &dyn std::fmt::Display| (BROKEN, format!("{what}: {error}"));
    let order = Order::read(input).map_err(|e| broken("no order could be read", &e))?;
    stand_back();
    confine(&order.limits).map_err(|e| broken("the limits could not be set", &e))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    rayon::ThreadPoolBuilder::new()
        .num_threads(cores.min(THREADS))
        .build_global()
        .map_err(|error| (NO_MEMORY, format!("no threads: {error}")))?;
    let mut component = Vec::new();
    input
        .read_to_end(&mut component)
        .map_err(|e| broken("no component could be read", &e))?;
    let code = Engine::new(&engine::config(order.profile))
        .map_err(|e| broken("no engine", &e))?
        .precompile_component(&component)
        .map_err(|error| match is_out_of_memory(&error) {
            true => (NO_MEMORY, told(&error)),
            false => (INVALID, told(&error)),
        })?;
    output
        .write_all(&code)
        .and_then(|()| output.flush())
        .map_err(|e| broken("the code could not be written", &e))
}

/// Lets everything else go first. Not being able to is no reason not to compile.
fn stand_back() {
    let _ = rustix::process::nice(NICE);
    #[cfg(target_os = "linux")]
    {
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        let killed = Some(rustix::process::Signal::KILL);
        let _ = rustix::process::set_parent_process_death_signal(killed);
    }
}

fn confine(limits: &CompileLimits) -> io::Result<()> {
    limit(Resource::Core, 0, 0)?;
    limit(Resource::Fsize, 0, 0)?;
    limit(Resource::Nofile, FILES, 0)?;
    // The first limit is a signal that names the reason, the second one cannot be ignored.
    limit(Resource::Cpu, limits.cpu_seconds, 2)?;
    limit(Resource::As, limits.memory_bytes, 0)
}

/// Sets a limit that cannot be raised again beyond `slack`. A lower one that is there already stays.
fn limit(resource: Resource, wanted: u64, slack: u64) -> io::Result<()> {
    let had = getrlimit(resource);
    let hard = had.maximum.unwrap_or(u64::MAX);
    let rlimit = Rlimit {
        current: Some(wanted.min(hard)),
        maximum: Some(wanted.saturating_add(slack).min(hard)),
    };
    Ok(setrlimit(resource, rlimit)?)
}

/// Allocations that fail end the process; maps that fail are errors, which must not look like a fault
/// of the component.
fn is_out_of_memory(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::OutOfMemory>()
        || error.chain().any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::OutOfMemory)
                || cause.downcast_ref() == Some(&rustix::io::Errno::NOMEM)
        })
}
