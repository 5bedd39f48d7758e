//! The decoder: the forward pass of serving, and the layer that serving and training share. Weights are loaded by
//! `clawhost-model`; scheduling is in `clawhost-engine`, losses in `clawhost-training`.

pub(crate) mod adapter;
mod decoder;
mod forward;
mod layer;
mod packed_weights;

pub(crate) use decoder::Decoder;
pub use forward::BatchRow;
pub(crate) use forward::PassRow;
pub(crate) use layer::{Activations, AdapterGroup, LayerPass, LayerValues, Purpose, resize_exact};
pub(crate) use packed_weights::ModelPackedWeights;

#[cfg(test)]
mod tests;
