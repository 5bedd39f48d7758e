//! From gradients to parameters: clip, schedule, AdamW.

mod adamw;
mod schedule;

pub use adamw::{AdamW, Moments, Parameter, ShapeError};
pub use schedule::{Schedule, Shape};

use crate::real::Real;

/// The norm of all gradients together, in f64, summed in the fixed order of the tensors.
pub fn global_norm<R: Real>(gradients: &[Vec<R>]) -> f64 {
    gradients
        .iter()
        .map(|tensor| tensor.iter().map(|g| g.wide() * g.wide()).sum::<f64>())
        .sum::<f64>()
        .sqrt()
}

/// The factor that brings a gradient of this norm down to `max`; 1 when it is below.
pub fn clip_factor(norm: f64, max: f64) -> f64 {
    (max / (norm + 1e-6)).min(1.0)
}
