//! Serving: requests in, sampled tokens out, many at once.
//!
//! One thread runs the model in steps; each step gives every decoding request its next token and
//! spends a bounded number of tokens on prompts. Attention memory is a pool of blocks that requests share where
//! they begin alike and wait for where it is full. Requests pin the adapter version that they began
//! with, so publishing a new one is a swap of a pointer. The engine refuses what it cannot finish
//! before it starts, and it never waits for a slow reader.

mod batcher;
mod elsewhere;
mod handle;
mod intake;
pub mod measure;
mod memory;
mod options;
mod places;
mod plan;
mod prefix;
mod replay;
mod request;
mod sequence;
mod served;
mod shares;
mod stats;
#[cfg(test)]
mod tests;
mod worker;

pub use elsewhere::{Activate, Elsewhere, Reply};
pub use handle::{Engine, NotReleased};
pub use options::{EngineOptions, Priority};
pub use replay::{NotReplayed, Replay, Replayed};
pub use request::{
    Event, FinishReason, Finished, GenerateRequest, Generation, Recorded, Refused, SampledToken,
};
pub use served::Served;
pub use stats::EngineStats;
