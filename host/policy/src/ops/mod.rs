//! The operations of a decoder on the CPU in f32, each with its gradient where training needs it. They work on plain
//! row-major buffers owned by the caller, allocate little, and are tested against candle's differentiable operations
//! and finite differences (`tests/gradients.rs`).
//!
//! They know nothing about models: no names, no configuration, no state.

#![allow(
    clippy::indexing_slicing,
    reason = "kernels index buffers whose sizes their callers in this crate establish and assert"
)]

pub(crate) mod attention;
pub(crate) mod bias;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod packed_weights;
mod prefetch;
pub(crate) mod rope;
pub(crate) mod simd;
mod small_batch;
pub(crate) mod swiglu;
pub(crate) mod thread_pool;
