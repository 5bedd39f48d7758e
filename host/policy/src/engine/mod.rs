//! Serving with continuous batching.
//!
//! One thread runs the model in steps. Each step decodes one token for every running request and spends a bounded
//! token budget on chunked prefill. The KV cache is a pool of blocks: requests with a common prefix share blocks, and
//! requests wait when the pool is full. A request keeps the adapter version it was submitted with until it ends, so
//! publishing a version swaps a pointer. The engine rejects a request it cannot finish before running any of it, and
//! it never waits for a slow reader.
//!
//! Where to find what:
//! - [`scheduler`]: the step loop body: schedule, run the model, sample, finish requests.
//! - [`waiting_queue`]: requests that are not running yet, per priority.
//! - [`batch_slots`]: priorities, and which requests get a row in the next step.
//! - [`token_budget`]: how many prefill and decode tokens go into the next step.
//! - [`fair_share`]: fairness between users.
//! - [`block_allocator`]: KV-cache block allocation, eviction and preemption.
//! - [`prefix_cache`]: KV-cache blocks of finished requests, by token prefix.
//! - [`engine_core`]: the engine thread.
//! - [`remote_backend`]: generation by another server.

mod batch_slots;
mod block_allocator;
mod engine_core;
mod fair_share;
mod handle;
mod loaded_version;
pub mod measure;
mod options;
mod prefix_cache;
mod remote_backend;
mod replay;
mod request;
mod scheduler;
mod sequence;
mod stats;
#[cfg(test)]
mod tests;
mod token_budget;
mod waiting_queue;

pub use handle::{Engine, PublishError};
pub use loaded_version::LoadedVersion;
pub use options::{EngineOptions, Priority};
pub use remote_backend::{ActivateVersion, RemoteBackend, TokenSink};
pub use replay::{Replay, ReplayError, ReplayOutput};
pub use request::{
    CompletionOutput, Event, FinishReason, GenerateRequest, Generation, ReplyLogprobs,
    SampledToken, SubmitError,
};
pub use stats::EngineStats;
