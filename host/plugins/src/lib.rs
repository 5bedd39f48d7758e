//! The WebAssembly component host: loading, grants, limits, calls and receipts.
//!
//! A component gets a capability only if it imports it *and* the operator granted it to the component's digest.
//! Every call runs in a fresh store under limits on CPU, wall time, memory and host calls. Whatever a guest does, the
//! call ends with a validated result or a typed [`Fault`], and with a [`Receipt`]. Host capabilities such as models
//! are traits that the binary implements, so this crate does not link the inference engine.
//!
//! ```
//! use clawhost_plugins::{
//!     CallContext, Grants, HostOptions, Message, PluginHost, Profile, Role, Trajectory,
//!     embedded_component,
//! };
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = PluginHost::new(HostOptions::default())?;
//! let component = embedded_component("judge-next-state").expect("a component of this program");
//! let judge = host.load("judge", component, &Grants::default(), Profile::Deterministic)?;
//!
//! let mut turns = Trajectory::new("session", "group");
//! let prompt = Message::text(Role::User, "What is 2 + 2?");
//! let reply = Message::text(Role::Assistant, "5");
//! let next_state = Message::text(Role::User, "No, that is wrong.");
//! turns.push(vec![prompt], reply, vec![next_state], false);
//! let result = judge.score_turn(CallContext::default(), &turns, 0).await;
//! assert!(result.outcome?.reward < 0.0);
//! assert!(result.receipt.fuel.is_some());
//! # Ok(())
//! # }
//! ```

mod admission;
mod bindings;
mod call;
mod call_stats;
mod capability;
mod compiling;
mod conversation;
mod convert;
mod embedded;
mod engine;
mod error;
mod exports;
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
mod loaded_plugin;
mod lock;
pub mod measure;
mod meter;
mod openai;
mod options;
mod panic_message;
mod precheck;
pub mod printable;
mod receipt;
mod regular_file;
mod store;
mod tail_buffer;
mod thread_pool;
mod verdict;
mod wasi;
mod worlds;

pub use call::{CallContext, TICK};
pub use call_stats::{CallStats, LatencyHistogram};
pub use capability::Answer;
pub use capability::http::{HttpRequest, InboundResponse, Network, NetworkError, OutboundRequest};
pub use capability::model::{
    ModelChoice, ModelClient, ModelError, ModelFinish, ModelRequest, ModelResponse, ToolSpec,
};
pub use capability::state::{StateEntry, StateError, StatePage, StateScope, StateStore};
pub use clawhost_config::{CompileLimits, Limits, PluginHostConfig, Profile, VerdictRules};
pub use clawhost_sandbox::Sandboxes;
pub use compiling::{CompileResource, CompilerCommand, CompilerExit, compile_component};
pub use conversation::{Blob, Message, Part, Role, ToolCall, Trajectory, Turn};
pub use embedded::{EMBEDDED_COMPONENTS, embedded_component};
pub use error::PluginError;
pub use fault::{Fault, FaultKind, PluginErrorKind};
pub use grants::{
    Capability, GrantEditor, GrantEntry, GrantFile, GrantFileError, Grants, HTTP_PLACEHOLDER,
    Manifest, ManifestError, Origin, SecretBinding,
};
pub use host::{Plugin, PluginHost};
pub use inspect::{Inspection, digest};
pub use kind::Kind;
pub use options::HostOptions;
pub use panic_message::panic_message;
pub use receipt::{CallResult, JudgeResult, Outcome, Receipt};
pub use regular_file::{FileError, read_regular_file};
pub use thread_pool::PluginThreads;
pub use verdict::{Metric, Verdict, Vote};
pub use worlds::advantage::{Advantages, Estimate, RewardedSequence};
pub use worlds::environment::{
    Episode, EpisodeOutcome, EpisodeTask, Observation, Progress, Transition,
};
pub use worlds::filter::Decision;
pub use worlds::gate::{Candidate, Review};
pub use worlds::hint::{Extraction, Hint, Placement};
pub use worlds::loss::{LossBatch, LossGradient, Requirements};
pub use worlds::pair_loss::{PairBatch, PairEvaluation, PairGradient, ScoredPair, ScoredReply};
