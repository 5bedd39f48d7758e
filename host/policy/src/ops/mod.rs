//! The operations a decoder needs, on the CPU in f32, each with its gradient where training passes
//! through. They work on plain row-major buffers that their callers own, allocate little, and are
//! tested against candle's differentiable operations and finite differences (`grad/reference`).
//!
//! They refuse to know what a model is: no names, no configuration, no state.

#![allow(
    clippy::indexing_slicing,
    reason = "kernels index buffers whose sizes their callers in this crate establish and assert"
)]

pub(crate) mod attention;
pub(crate) mod bias;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod panels;
mod prefetch;
pub(crate) mod rope;
mod rows;
pub(crate) mod simd;
pub(crate) mod swiglu;
pub(crate) mod team;
