//! The compiler subprocess.
//!
//! It sets its own resource limits before it reads the component, so that the parent needs no unsafe code between fork
//! and exec. It runs with an empty environment, cannot write files, can open only a few, and is the first process that
//! the OOM killer ends. It is no defence against a code generator bug that lets a component choose the generated
//! machine code: the limits protect against components that are expensive to compile, not against a faulty compiler.

use std::io::{self, BufReader, Read, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wasmtime::Engine;

use super::engine_error;
use super::request::{CompileRequest, EXIT_FAILED, EXIT_INVALID, EXIT_NO_MEMORY};
use crate::engine;
use clawhost_config::CompileLimits;

/// Maximum compiler threads. Each reserves address space, which is limited, so the number of cores does not raise it.
const THREADS: usize = 4;
/// Maximum open files: three standard streams and a few that the runtime opens.
const FILES: u64 = 32;
/// The nice value of the process, so that serving has priority.
const NICE: i32 = 10;

/// Compiles the component on standard input and writes the code to standard output. This is the program that
/// [`crate::CompilerCommand`] starts. It lowers the resource limits of the process for good, so the process must exit
/// afterwards.
pub fn compile_component() -> ExitCode {
    let result = compile(&mut BufReader::new(io::stdin()), &mut io::stdout());
    ExitCode::from(match result {
        Ok(()) => 0,
        Err((code, reason)) => {
            // A closed standard error is ignored.
            let _ = writeln!(io::stderr(), "{reason}");
            code
        }
    })
}

/// Exit code and reason.
type CompileFailure = (u8, String);

fn compile(
    input: &mut BufReader<io::Stdin>,
    output: &mut io::Stdout,
) -> Result<(), CompileFailure> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| (EXIT_FAILED, format!("{what}: {error}"));
    let request =
        CompileRequest::read(input).map_err(|e| failed("cannot read the compile request", &e))?;
    lower_priority();
    set_limits(&request.limits).map_err(|e| failed("cannot set the resource limits", &e))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    rayon::ThreadPoolBuilder::new()
        .num_threads(cores.min(THREADS))
        .build_global()
        .map_err(|error| (EXIT_NO_MEMORY, format!("cannot start threads: {error}")))?;
    let mut component = Vec::new();
    input
        .read_to_end(&mut component)
        .map_err(|e| failed("cannot read the component", &e))?;
    let code = Engine::new(&engine::config(request.profile))
        .map_err(|e| failed("cannot create the engine", &e))?
        .precompile_component(&component)
        .map_err(|error| match is_out_of_memory(&error) {
            true => (EXIT_NO_MEMORY, engine_error(&error)),
            false => (EXIT_INVALID, engine_error(&error)),
        })?;
    output
        .write_all(&code)
        .and_then(|()| output.flush())
        .map_err(|e| failed("cannot write the compiled code", &e))
}

/// Lowers the CPU priority and makes the process the first candidate of the OOM killer. Errors are ignored, because
/// compiling also works without this.
fn lower_priority() {
    let _ = rustix::process::nice(NICE);
    #[cfg(target_os = "linux")]
    {
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        let kill = Some(rustix::process::Signal::KILL);
        let _ = rustix::process::set_parent_process_death_signal(kill);
    }
}

fn set_limits(limits: &CompileLimits) -> io::Result<()> {
    limit(Resource::Core, 0, 0)?;
    limit(Resource::Fsize, 0, 0)?;
    limit(Resource::Nofile, FILES, 0)?;
    // The soft limit sends SIGXCPU, which names the reason; the hard limit two seconds later cannot be ignored.
    limit(Resource::Cpu, limits.cpu_time.as_secs().max(1), 2)?;
    limit(Resource::As, limits.memory, 0)
}

/// Sets the soft limit to `wanted` and the hard limit to `wanted + slack`. A lower existing limit stays.
fn limit(resource: Resource, wanted: u64, slack: u64) -> io::Result<()> {
    let existing = getrlimit(resource);
    let hard = existing.maximum.unwrap_or(u64::MAX);
    let rlimit = Rlimit {
        current: Some(wanted.min(hard)),
        maximum: Some(wanted.saturating_add(slack).min(hard)),
    };
    Ok(setrlimit(resource, rlimit)?)
}

/// Whether the error means that memory ran out. A failed allocation aborts the process, but a failed mmap is returned as
/// an error, which must not be reported as an invalid component.
fn is_out_of_memory(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::OutOfMemory>()
        || error.chain().any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::OutOfMemory)
                || cause.downcast_ref() == Some(&rustix::io::Errno::NOMEM)
        })
}
