//! Errors of loading a component.

use clawhost_config::{CompileLimits, duration_text, size_text};

use crate::compiling::limits::{CompileResource, CompilerExit};
use crate::grants::Capability;
use crate::kind::Kind;

fn compile_limits_text(limits: &CompileLimits) -> String {
    format!(
        "{} of CPU time, {} of wall time, {} of memory, {} of code",
        duration_text(limits.cpu_time),
        duration_text(limits.wall_time),
        size_text(limits.memory),
        size_text(limits.code_size)
    )
}

/// A component was rejected, or the plugin host could not start. The message says what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PluginError {
    /// The file is larger than the limit.
    #[error("the component has {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Bytes of the file.
        size: usize,
        /// Largest allowed size, in bytes.
        limit: usize,
    },
    /// The file is not WebAssembly.
    #[error("not WebAssembly: the file begins with {start}; expected a component (.wasm)")]
    NotWasm {
        /// The first bytes, in hex.
        start: String,
    },
    /// A core module.
    #[error(
        "this is a core module, not a component; build it for wasm32-wasip2, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    /// Precompiled native code.
    #[error(
        "this is precompiled native code (.cwasm), which is never loaded from a file; load the component (.wasm) that it was compiled from"
    )]
    Precompiled,
    /// The section structure is broken.
    #[error("the component is truncated or malformed: {reason} at byte {offset}")]
    Malformed {
        /// Offset in the file.
        offset: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The component has more functions, modules or nesting levels than the host compiles.
    #[error("the component has {count} {what}, the limit is {limit}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// Largest allowed count.
        limit: u64,
    },
    /// The engine rejects it.
    #[error("the component is not valid: {0}")]
    Invalid(String),
    /// Compiling it exceeds a limit.
    #[error(
        "compiling the component takes more than {limit} {resource}; if the component is meant to be this large, raise plugins.host.compiling.{}", resource.key()
    )]
    CompilerLimit {
        /// The exhausted resource.
        resource: CompileResource,
        /// Its limit.
        limit: u64,
    },
    /// The compiler process crashed or failed without a reason.
    #[error(
        "the compiler {exit} while compiling this component; its limits were {}; its standard error: {stderr:?}",
        compile_limits_text(limits)
    )]
    CompilerCrashed {
        /// How it ended.
        exit: CompilerExit,
        /// Its limits.
        limits: CompileLimits,
        /// The start of its standard error, escaped to one line.
        stderr: String,
    },
    /// The compiler process cannot be used for any component.
    #[error("cannot compile components: {0}")]
    Compiler(String),
    /// Exports no plugin interface.
    #[error(
        "the component exports no plugin interface of clawhost:plugin@0.1 (judge, group-judge, hint-extractor, loss, advantage, environment); it exports {exports}"
    )]
    NoKind {
        /// What it exports.
        exports: String,
    },
    /// Exports several plugin interfaces.
    #[error(
        "the component exports {first} and {second}; a component must export exactly one plugin interface"
    )]
    MultipleKinds {
        /// One of them.
        first: Kind,
        /// Another.
        second: Kind,
    },
    /// A version of the WIT package that this host does not support.
    #[error(
        "the component uses {name}; this host supports clawhost:plugin@0.1, in which every later 0.1 version still loads older components; rebuild it against the WIT package of this release, which `clawhost plugin new` writes"
    )]
    UnsupportedVersion {
        /// The import or export.
        name: String,
    },
    /// An import that is neither in the WIT package nor WASI 0.2.
    #[error(
        "the component imports {name}, which this host does not provide; components may import clawhost:plugin@0.1 and plain WASI 0.2 (cli, clocks, filesystem, io, random, sockets)"
    )]
    UnknownImport {
        /// The import.
        name: String,
    },
    /// A capability that the world of this plugin does not include.
    #[error("the component imports {capability}, which world {world} does not include")]
    OutsideWorld {
        /// The capability.
        capability: Capability,
        /// The world.
        world: &'static str,
    },
    /// A capability that the operator did not grant.
    #[error(
        "{name} imports {}, which is not granted to sha256 {digest}; to grant it, run: clawhost plugin grant FILE {}",
        comma_separated(.missing),
        .arguments.join(" ")
    )]
    NotGranted {
        /// Name of the plugin.
        name: String,
        /// The capabilities.
        missing: Vec<Capability>,
        /// sha256 of the component.
        digest: String,
        /// The arguments of `clawhost plugin grant`, from the manifest;
        /// [`HTTP_PLACEHOLDER`](crate::HTTP_PLACEHOLDER) where the manifest names no origin.
        arguments: Vec<String>,
    },
    /// A capability that is granted but that this host cannot provide.
    #[error("{name} imports {capability}, which is granted but not available: {reason}")]
    NotAvailable {
        /// Name of the plugin.
        name: String,
        /// The capability.
        capability: Capability,
        /// Why.
        reason: &'static str,
    },
    /// The initial memory or table is larger than any call gets.
    #[error("the component needs {needed} {what} to start, the limit is {limit}")]
    InitialSizeTooLarge {
        /// `bytes of memory` or `table elements`.
        what: &'static str,
        /// Initial size.
        needed: u64,
        /// Largest allowed size.
        limit: u64,
    },
    /// The imports or exports have other types than the WIT package.
    #[error("the component does not match clawhost:plugin@0.1: {0}")]
    TypeMismatch(String),
    /// The engine, the threads or the ticker could not start.
    #[error("cannot start the plugin host: {0}")]
    Host(String),
}

fn comma_separated(capabilities: &[Capability]) -> String {
    let names: Vec<&str> = capabilities.iter().map(|one| one.name()).collect();
    names.join(", ")
}
