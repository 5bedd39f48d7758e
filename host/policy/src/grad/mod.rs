//! Log-probs of recorded tokens and their gradients, for a loss that depends only on log-probs and entropies.
//!
//! This is gradient checkpointing by layer: the forward pass stores one input per layer; the backward pass runs the
//! layers in reverse, recomputes the activations of each and differentiates it by hand, so memory is one layer's
//! activations plus one input per layer. Sequences are packed without padding, in micro-batches of a few hundred tokens
//! that several threads process in parallel; one layer's activations are those of one micro-batch per thread. Losses
//! and optimizers are elsewhere.

mod gradients;
mod layer_backward;
mod packing;
mod pass;
mod sequence;

pub use gradients::Gradients;
pub use pass::{GradientTarget, TrainPass};
pub use sequence::{Candidates, LossGradients, Sequence, SequenceScores};
