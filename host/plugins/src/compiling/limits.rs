//! Limits on compiling one component.

use clawhost_config::CompileLimits;

/// Compiled code that every component is allowed, in bytes, whatever its size.
const MIN_CODE_LIMIT: u64 = 8 << 20;

/// The limit on this resource for a component of `component` bytes, in the unit of [`CompileResource`].
pub(super) fn limit(limits: &CompileLimits, resource: CompileResource, component: usize) -> u64 {
    match resource {
        CompileResource::CpuSeconds => limits.cpu_time.as_secs().max(1),
        CompileResource::WallMs => u64::try_from(limits.wall_time.as_millis()).unwrap_or(u64::MAX),
        CompileResource::MemoryBytes => limits.memory,
        CompileResource::CodeBytes => limits.code_size,
        CompileResource::CodeRatio => limits
            .code_ratio
            .saturating_mul(component as u64)
            .max(MIN_CODE_LIMIT),
    }
}

/// The lower of the two limits on compiled code, with its resource.
pub(super) fn code_limit(limits: &CompileLimits, component: usize) -> (CompileResource, u64) {
    let by_size = limit(limits, CompileResource::CodeRatio, component);
    match by_size < limits.code_size {
        true => (CompileResource::CodeRatio, by_size),
        false => (CompileResource::CodeBytes, limits.code_size),
    }
}

/// A limited resource of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompileResource {
    /// CPU time, in seconds.
    CpuSeconds,
    /// Wall time, in milliseconds.
    WallMs,
    /// Address space, in bytes.
    MemoryBytes,
    /// Compiled code, in bytes.
    CodeBytes,
    /// Compiled code, in bytes, limited relative to the size of the component.
    CodeRatio,
}

impl CompileResource {
    /// The field of [`CompileLimits`], which is also the key in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            CompileResource::CpuSeconds => "cpu_time",
            CompileResource::WallMs => "wall_time",
            CompileResource::MemoryBytes => "memory",
            CompileResource::CodeBytes => "code_size",
            CompileResource::CodeRatio => "code_ratio",
        }
    }
}

impl std::fmt::Display for CompileResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CompileResource::CpuSeconds => "seconds of CPU time",
            CompileResource::WallMs => "milliseconds of wall time",
            CompileResource::MemoryBytes => "bytes of memory",
            CompileResource::CodeBytes => "bytes of compiled code",
            CompileResource::CodeRatio => "bytes of compiled code for a component of its size",
        })
    }
}

/// How a compiler process ended abnormally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompilerExit {
    /// Killed by this signal.
    Signal(i32),
    /// Exited with this code.
    Code(i32),
}

impl std::fmt::Display for CompilerExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CompilerExit::Signal(number) => write!(f, "was killed by signal {number}"),
            CompilerExit::Code(number) => write!(f, "exited with code {number}"),
        }
    }
}
