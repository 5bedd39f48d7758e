//! The inference engine: serving with continuous batching, on any [`Backend`].
//!
//! One thread runs the model in steps. Each step decodes one token for every running request and spends a bounded
//! token budget on chunked prefill. The KV cache is a pool of blocks: requests with a common prefix share blocks, and
//! requests wait when the pool is full. A request keeps the adapter version it was submitted with until it ends, so
//! publishing a version swaps a pointer. The engine rejects a request it cannot finish before running any of it, and
//! it never waits for a slow reader.
//!
//! Where to find what:
//! - [`backend`]: the trait of an inference backend: steps, scores, training. It owns the memory and samples.
//! - `handle`: [`Engine`], what the rest of the program holds.
//! - `engine_core`: the engine thread.
//! - `scheduler`: the step loop body: schedule, let the backend run, finish requests.
//! - `waiting_queue`: requests that are not running yet, per priority.
//! - `batch_slots`: priorities, and which requests get a row in the next step.
//! - `token_budget`: how many prefill and decode tokens go into the next step.
//! - `fair_share`: fairness between users.
//! - `block_allocator`: KV-cache block allocation, eviction and preemption.
//! - `block_pool`, `block_table`: reference-counted block ids, and the blocks of one request.
//! - `prefix_cache`: KV-cache blocks of finished requests, by token prefix.
//! - `sampling`: sampling parameters and structured output.
//! - `replicated`: several backends of one kind as one, for the GPUs of a host; `dispatch`: which of them gets a request.
//! - `remote_backend`: generation by another server, a request at a time.
//! - [`background`]: training beside serving.
//! - [`measure`]: benchmarks of serving.
//!
//! This crate names no backend, and does not depend on sessions, judges or losses.
//!
//! ```
//! use std::sync::Arc;
//! use clawhost_engine::{Backend, Engine, EngineOptions};
//! use clawhost_model::{LoadError, ModelFiles};
//!
//! /// Starts an engine on a backend that has loaded these files, such as `clawhost_cpu::CpuBackend`.
//! fn start(backend: Arc<dyn Backend>, files: &ModelFiles) -> Result<Engine, LoadError> {
//!     let engine = Engine::load(backend, files, EngineOptions::default())?;
//!     assert_eq!(engine.active().version, 0);
//!     Ok(engine)
//! }
//! ```

pub mod backend;
pub mod background;
mod batch_slots;
mod block_allocator;
mod block_pool;
mod block_table;
mod checkpoint_files;
mod dispatch;
mod engine_core;
mod engine_load;
mod fair_share;
mod handle;
mod loaded_version;
pub mod measure;
mod options;
mod prefix_cache;
mod remote_backend;
mod replay;
mod replicated;
mod request;
mod sampling;
mod scheduler;
mod sequence;
mod stats;
#[cfg(feature = "testing")]
pub mod testing;
mod token_budget;
mod waiting_queue;

pub use backend::{
    AdamW, AdamWState, AdapterSlot, Backend, Candidates, ForwardError, LossGradients,
    OptimizerStep, Sequence, SequenceScores, TrainLimits, TrainSession,
};
pub use background::BackgroundWork;
pub use handle::{Engine, PublishError};
pub use loaded_version::LoadedVersion;
pub use options::{EngineOptions, Priority};
pub use remote_backend::{ActivateVersion, RemoteBackend, TokenSink};
pub use replay::{Replay, ReplayError, ReplayOutput};
pub use replicated::ReplicatedBackend;
pub use request::{
    CompletionOutput, Event, FinishReason, GenerateRequest, Generation, ReplyLogprobs,
    SampledToken, SubmitError,
};
pub use sampling::{
    CallableTool, Constraint, ConstraintError, GrammarCompiler, GrammarMatcher, ResponseFormat,
    SamplingError, SamplingParams, SchemaError, TokenBitmask, ToolCallConstraint, check_schema,
};
pub use stats::EngineStats;
