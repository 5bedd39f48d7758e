//! Log-probs of recorded tokens and their gradients, for a loss that depends only on log-probs and entropies.
//!
//! The forward pass stores one input per layer, and the activations of as many of the last layers as fit in
//! `TrainLimits::activation_memory`. The backward pass runs the layers in reverse, recomputes the other activations
//! (gradient checkpointing) and differentiates each layer by hand. Sequences are packed without padding, in
//! micro-batches of a few hundred tokens that several threads process in parallel; one layer's activations are those of
//! one micro-batch per thread. Losses are in `clawhost-training`.

mod gradients;
mod layer_backward;
mod memory;
mod packing;
mod pass;

pub use gradients::{GradientTarget, Gradients};
pub use memory::PassMemory;
pub(crate) use pass::StoredPass;
pub use pass::TrainPass;

#[cfg(test)]
mod tests;
