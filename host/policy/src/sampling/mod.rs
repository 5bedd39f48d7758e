//! From logits to a token, with the log-probs that training needs.
//!
//! A token is drawn in a fixed order: penalties, temperature, min-p, top-k, top-p, one draw. Two
//! log-probs are recorded with it: of the distribution that was really drawn from, and of the full
//! softmax at the temperature, which a trainer can recompute. A third, of the model's own
//! distribution at temperature 1, is what chat clients are shown.

mod distribution;
mod options;
mod sampler;

pub use options::{Sampling, SamplingError};
pub(crate) use sampler::{Drawn, Sampler};
