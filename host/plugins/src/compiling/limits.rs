//! Limits on compiling one component.

use serde::{Deserialize, Serialize};

/// Limits on compiling one component. A Python judge of 18 MB with its interpreter needs less than a tenth of the time
/// and a third of the memory; no other plugin language needs more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompileLimits {
    /// CPU time of the compiler process, all threads together, in seconds. Default 120.
    pub cpu_seconds: u64,
    /// Wall time, in milliseconds. The compiler has a lower priority than serving, which may use most of the CPU.
    /// Default 240,000.
    pub wall_ms: u64,
    /// Address space of the compiler process, in bytes; some of it is reserved and never used. Default 2 GiB.
    pub memory_bytes: u64,
    /// Size of the compiled code, in bytes, including initial memory images. Default 256 MiB.
    pub code_bytes: u64,
    /// The same limit as a multiple of the component's size; at least 8 MiB are always allowed. Prevents a small
    /// component from filling the cache and the server's memory. Default 16.
    pub code_ratio: u64,
}

/// Compiled code that every component is allowed, in bytes, whatever its size.
const MIN_CODE_LIMIT: u64 = 8 << 20;

impl Default for CompileLimits {
    fn default() -> Self {
        CompileLimits {
            cpu_seconds: 120,
            wall_ms: 240_000,
            memory_bytes: 2 << 30,
            code_bytes: 256 << 20,
            code_ratio: 16,
        }
    }
}

impl CompileLimits {
    /// The limit on this resource for a component of `component` bytes, in the unit of [`CompileResource`].
    pub(super) fn limit(&self, resource: CompileResource, component: usize) -> u64 {
        match resource {
            CompileResource::CpuSeconds => self.cpu_seconds,
            CompileResource::WallMs => self.wall_ms,
            CompileResource::MemoryBytes => self.memory_bytes,
            CompileResource::CodeBytes => self.code_bytes,
            CompileResource::CodeRatio => self
                .code_ratio
                .saturating_mul(component as u64)
                .max(MIN_CODE_LIMIT),
        }
    }

    /// The lower of the two limits on compiled code, with its resource.
    pub(super) fn code_limit(&self, component: usize) -> (CompileResource, u64) {
        let by_size = self.limit(CompileResource::CodeRatio, component);
        match by_size < self.code_bytes {
            true => (CompileResource::CodeRatio, by_size),
            false => (CompileResource::CodeBytes, self.code_bytes),
        }
    }
}

impl std::fmt::Display for CompileLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} s of CPU time, {} ms, {} bytes of memory, {} bytes of code",
            self.cpu_seconds, self.wall_ms, self.memory_bytes, self.code_bytes
        )
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
            CompileResource::CpuSeconds => "cpu_seconds",
            CompileResource::WallMs => "wall_ms",
            CompileResource::MemoryBytes => "memory_bytes",
            CompileResource::CodeBytes => "code_bytes",
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
