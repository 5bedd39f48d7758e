//! The CPU backend of the inference engine: f32 kernels on a thread pool, each with its gradient.
//!
//! - [`CpuBackend`]: implements [`clawhost_engine::Backend`]; [`load_engine`] and [`start_engine`] start an engine on it.
//! - [`CpuModel`], [`CpuWeights`]: a model without an engine: forward pass, scores, training passes.
//! - `model`: the decoder: forward pass of serving, and the layer that serving and training share.
//! - `grad`: the backward pass.
//! - `train`, [`optimizer`]: a training session, and its AdamW.
//! - [`Processors`], [`HostMemory`]: what is known of the machine; [`CpuMemory`]: how much memory a model takes, before it
//!   is loaded.
//! - `ops`: the operations, which know nothing about models.
//! - `kv`: the memory of KV-cache blocks.
//! - `sampling`: from logits to a token.
//! - `merge`: merges an adapter into its base model.
//!
//! Serving and training run the same forward pass, so the logprobs recorded while serving and those computed in
//! training agree by construction.
//!
//! ```
//! use clawhost_cpu::load_engine;
//! use clawhost_engine::{EngineOptions, GenerateRequest, Priority, SamplingParams};
//! use clawhost_model::ModelFiles;
//!
//! let engine = load_engine(&ModelFiles::embedded(), EngineOptions::default())?;
//! let mut generation = engine.generate(GenerateRequest {
//!     prompt: engine.tokenizer().encode("Hello").unwrap(),
//!     sampling: SamplingParams { max_tokens: 3, ..SamplingParams::default() },
//!     version: engine.active(),
//!     priority: Priority::Interactive,
//!     user: None,
//! })?;
//! while let Some(event) = generation.blocking_next() {
//!     println!("{event:?}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
mod bandwidth;
mod cgroup;
mod cpu_model;
mod device;
mod grad;
mod kv;
mod memory;
mod merge;
mod model;
mod ops;
pub mod optimizer;
mod runner;
mod sampling;
mod shared;
mod train;

pub use backend::{CpuBackend, load_engine, start_engine};
pub use bandwidth::{BEYOND_CACHES, measure_read_bandwidth};
pub use cgroup::MemoryLimit;
pub use cpu_model::{CpuModel, CpuWeights};
pub use device::{HostMemory, Processors};
pub use grad::{GradientTarget, Gradients, PassMemory, TrainPass};
pub use kv::{KvCache, block_bytes};
pub use memory::CpuMemory;
pub use model::BatchRow;
