//! Scoring recorded tokens and differentiating through them, for a loss that only ever sees
//! log-probabilities and entropies.
//!
//! The forward pass keeps one input per layer; the backward pass runs the layers in reverse, recomputes
//! each and differentiates it by hand, so memory is one layer's activations plus one input per layer.
//! Sequences are packed end to end and never padded, in portions of a few hundred tokens that several threads go
//! through at once: one layer's activations are those of one portion per thread. It refuses to know any loss or optimizer.

mod gradients;
mod layer;
mod packed;
mod pass;
mod sequence;

pub use gradients::Gradients;
pub use pass::{TrainPass, Trained};
pub use sequence::{Candidates, Partials, Scored, Sequence};
