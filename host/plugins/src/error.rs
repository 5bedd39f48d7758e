//! Why a component was not loaded.

use crate::compiling::{CompileLimits, CompileResource, CompilerEnd};
use crate::grants::Capability;
use crate::kind::Kind;

/// A component that was refused, or a host that could not start. The message names the fact and
/// what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PluginError {
    /// More bytes than the host takes.
    #[error("{size} bytes are too large for a component, at most {limit} are taken")]
    TooLarge {
        /// Bytes of the file.
        size: usize,
        /// Bytes that are allowed.
        limit: usize,
    },
    /// Neither WebAssembly nor anything else we know.
    #[error("this is not WebAssembly: it begins with {start}; expected a component (.wasm)")]
    NotWasm {
        /// The first bytes, in hex.
        start: String,
    },
    /// A core module.
    #[error(
        "this is a core module, not a component; build it for wasm32-wasip2, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    /// Compiled code.
    #[error(
        "this is precompiled native code (.cwasm), which is never taken from outside; load the component (.wasm) that it was made from"
    )]
    Precompiled,
    /// A section reaches beyond the end.
    #[error("the component is cut off or damaged: {reason} at byte {offset}")]
    Damaged {
        /// Where.
        offset: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// More of something than the host compiles.
    #[error("the component has {count} {what}, at most {limit} are taken")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// The engine refuses it.
    #[error("the component is not valid: {0}")]
    Invalid(String),
    /// It is too expensive to compile.
    #[error(
        "compiling the component takes more than {limit} {resource}, and so it is not used; if it is meant to be this large, raise plugin_host.compiling.{}", resource.key()
    )]
    CompilerLimit {
        /// What ran out.
        resource: CompileResource,
        /// How much of it there was.
        limit: u64,
    },
    /// The compiler's process ended without saying why.
    #[error(
        "the compiler {ended} over this component, which is not used; its limits were {limits}; it said: {said:?}"
    )]
    CompilerDied {
        /// How it ended.
        ended: CompilerEnd,
        /// What it was allowed.
        limits: CompileLimits,
        /// The start of its standard error, on one line.
        said: String,
    },
    /// The compiler's process cannot be used, whatever the component.
    #[error("components cannot be compiled: {0}")]
    Compiler(String),
    /// Exports nothing that the contract knows.
    #[error(
        "the component exports no plugin interface of clawhost:plugin@0.1 (judge, group-judge, hint-extractor, loss, advantage, environment); it exports {exports}"
    )]
    NoKind {
        /// What it exports.
        exports: String,
    },
    /// Exports several plugin interfaces.
    #[error("the component exports {first} and {second}; one component is one kind of plugin")]
    TwoKinds {
        /// One of them.
        first: Kind,
        /// Another.
        second: Kind,
    },
    /// A version of the contract that this host does not speak.
    #[error("the component uses {name}; this host supports clawhost:plugin@0.1")]
    OtherVersion {
        /// The import or export.
        name: String,
    },
    /// An import outside the contract.
    #[error(
        "the component imports {name}, which this host does not offer; components may import clawhost:plugin@0.1 and plain WASI 0.2 (cli, clocks, filesystem, io, random, sockets)"
    )]
    UnknownImport {
        /// The import.
        name: String,
    },
    /// A capability of the contract that the world of this plugin does not include.
    #[error("the component imports {capability}, which world {world} does not include")]
    OutsideWorld {
        /// The capability.
        capability: Capability,
        /// The world.
        world: &'static str,
    },
    /// A capability that the operator did not grant.
    #[error(
        "{name} imports {}, which is not granted to sha256 {digest}; this grants it, with the component's path for FILE: clawhost plugin grant FILE {}",
        listed(.missing),
        .arguments.join(" ")
    )]
    NotGranted {
        /// Name of the plugin.
        name: String,
        /// The capabilities.
        missing: Vec<Capability>,
        /// sha256 of the component.
        digest: String,
        /// The arguments of `clawhost plugin grant`, as the manifest names them;
        /// [`HTTP_PLACE`](crate::HTTP_PLACE) where nothing says which origin is meant.
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
    /// More memory or tables at the start than any call gets.
    #[error("the component needs {needed} {what} to start, at most {limit} are given")]
    TooHungry {
        /// `bytes of memory` and the like.
        what: &'static str,
        /// What it needs.
        needed: u64,
        /// What it can get.
        limit: u64,
    },
    /// The imports or exports have other types than the contract.
    #[error("the component does not fit the contract: {0}")]
    Mismatch(String),
    /// The engine, the threads or the ticker could not start.
    #[error("the plugin host cannot start: {0}")]
    Host(String),
}

fn listed(capabilities: &[Capability]) -> String {
    let names: Vec<&str> = capabilities.iter().map(|one| one.name()).collect();
    names.join(", ")
}
