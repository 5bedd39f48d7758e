//! The operations of a decoder on the CPU in f32, each with its gradient where training needs it. They work on plain
//! row-major buffers owned by the caller, allocate little, and are tested against candle's differentiable operations
//! and finite differences (`tests/gradients.rs`).
//!
//! They know nothing about models: no names, no configuration, no state.

pub(crate) mod attention;
pub(crate) mod bias;
mod gemm;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod packed_weights;
mod prefetch;
mod quantized;
pub(crate) mod rope;
pub(crate) mod simd;
mod small_batch;
pub(crate) mod streamed_head;
pub(crate) mod swiglu;
pub(crate) mod thread_pool;
