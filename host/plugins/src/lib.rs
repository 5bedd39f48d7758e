//! The WebAssembly component host: load, grants, limits, receipts.
//!
//! A component gets what its imports ask for *and* the operator granted to its digest, and nothing
//! else. Every call runs in a fresh store under limits on CPU, wall time, memory and host calls;
//! whatever a guest does, the call ends with a checked result or a typed [`Fault`], and with a
//! [`Receipt`]. Host capabilities such as models are traits that the binary hands in, so this
//! crate links no engine of ours.

mod account;
mod admission;
mod bindings;
mod call;
mod calls;
mod capability;
mod compiling;
mod conversation;
mod convert;
mod embedded;
mod engine;
mod error;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod grants;
mod host;
mod inspect;
mod invoke;
mod kind;
mod linking;
mod loaded;
pub mod measure;
mod meter;
mod openai;
mod options;
pub mod printable;
mod profile;
mod receipt;
mod regular_file;
mod store;
mod threads;
mod verdict;
mod walk;
mod wasi;
mod worlds;

pub use account::{Account, Times};
pub use call::{CallContext, Limits, TICK, TensorLimits};
pub use capability::Answer;
pub use capability::http::{HttpRequest, InboundResponse, Network, NetworkError, OutboundRequest};
pub use capability::model::{
    ModelChoice, ModelClient, ModelError, ModelFinish, ModelRequest, ModelResponse, ToolSpec,
};
pub use capability::state::{StateEntry, StateError, StatePage, StateScope, StateStore};
pub use compiling::{
    CompileLimits, CompileResource, CompilerCommand, CompilerEnd, compile_component,
};
pub use conversation::{Blob, Message, Part, Role, ToolCall, Trajectory, Turn};
pub use embedded::{EMBEDDED, embedded};
pub use error::PluginError;
pub use fault::{Fault, FaultKind, PluginErrorKind};
pub use grants::{
    Capability, GrantBook, GrantBookError, GrantEditor, GrantedTo, Grants, HTTP_PLACE, Manifest,
    ManifestError, Origin, SecretBinding,
};
pub use host::{Called, HostOptions, Judged, Plugin, PluginHost};
pub use inspect::{Inspection, digest};
pub use kind::Kind;
pub use openai::BadMessage;
pub use profile::Profile;
pub use receipt::{Outcome, Receipt};
pub use regular_file::{FileError, read_regular_file};
pub use verdict::{Metric, Verdict, VerdictRules, Vote};
pub use worlds::advantage::{Advantages, Estimate, RewardedSequence};
pub use worlds::environment::{
    Episode, EpisodeOutcome, EpisodeTask, Observation, Progress, Transition,
};
pub use worlds::hint::{Extraction, Hint, Placement};
pub use worlds::loss::{LossBatch, LossGradient, Requirements};
