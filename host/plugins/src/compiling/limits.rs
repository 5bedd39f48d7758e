//! What compiling one component may use up.

use serde::{Deserialize, Serialize};

/// Limits on the process that compiles one component. A judge in Python of 18 MB, interpreter and all,
/// needs less than a tenth of the time and a third of the memory; nothing that plugins are written in
/// needs more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileLimits {
    /// CPU time of all its threads together, in seconds. Default 120.
    pub cpu_seconds: u64,
    /// Time by the clock, in milliseconds. It stands back behind serving, which may take most of the
    /// processor. Default 240,000.
    pub wall_ms: u64,
    /// Address space, in bytes; some of it is reserved and never used. Default 2 GiB.
    pub memory_bytes: u64,
    /// Compiled code, in bytes, with the images of memories that it starts with. Default 256 MiB.
    pub code_bytes: u64,
    /// The same, in multiples of the component's own size; at least 8 MiB are allowed. A small component that fills
    /// the cache and the memory of the server is no plugin. Default 16.
    pub code_ratio: u64,
}

/// Compiled code that every component may become, in bytes, whatever its size.
const CODE_FLOOR: u64 = 8 << 20;

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
    /// The limit on this for a component of so many bytes, in the unit of [`CompileResource`].
    pub(super) fn on(&self, resource: CompileResource, component: usize) -> u64 {
        match resource {
            CompileResource::CpuSeconds => self.cpu_seconds,
            CompileResource::WallMs => self.wall_ms,
            CompileResource::MemoryBytes => self.memory_bytes,
            CompileResource::CodeBytes => self.code_bytes,
            CompileResource::CodeRatio => self
                .code_ratio
                .saturating_mul(component as u64)
                .max(CODE_FLOOR),
        }
    }

    /// The lower of the two limits on compiled code, and which one it is.
    pub(super) fn on_code(&self, component: usize) -> (CompileResource, u64) {
        let by_size = self.on(CompileResource::CodeRatio, component);
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

/// What a compilation ran out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompileResource {
    /// CPU time, in seconds.
    CpuSeconds,
    /// Time by the clock, in milliseconds.
    WallMs,
    /// Address space, in bytes.
    MemoryBytes,
    /// Compiled code, in bytes.
    CodeBytes,
    /// Compiled code, in bytes, measured by the size of the component.
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
            CompileResource::WallMs => "milliseconds",
            CompileResource::MemoryBytes => "bytes of memory",
            CompileResource::CodeBytes => "bytes of compiled code",
            CompileResource::CodeRatio => "bytes of compiled code, for a component of its size",
        })
    }
}

/// How a compiler ended that should have ended otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompilerEnd {
    /// A signal ended it, by its number.
    Signal(i32),
    /// It gave up with this exit code.
    Code(i32),
}

impl std::fmt::Display for CompilerEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CompilerEnd::Signal(number) => write!(f, "was ended by signal {number}"),
            CompilerEnd::Code(number) => write!(f, "gave up with exit code {number}"),
        }
    }
}
