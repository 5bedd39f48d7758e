//! Benchmarks plugin calls through this host and, as a baseline, through the bare engine.
//!
//! Every call creates a fresh instance and goes through the whole host: grants, limits, receipt, validation. The
//! baseline calls Wasmtime directly in the same process: an engine and a pool with the host's settings, no limits, no
//! validation, no receipt. This module only measures; it defines no targets.

mod bare_engine;
mod calls;
mod failing;
mod latencies;
mod looping;
mod memory;
mod sample;

pub use bare_engine::BareEngine;
pub use calls::{Callers, measure_calls};
pub use failing::failing_calls;
pub use latencies::CallLatencies;
pub use looping::LoopingCalls;
pub use memory::{bytes_per_instance, resident_bytes};
pub use sample::{LOSS_TOKENS, Sample};
