//! Optimizer: gradient clipping, learning rate schedule, AdamW.

mod adamw;
mod schedule;

pub use adamw::{AdamW, OptimizerState, Parameter, ShapeError};
pub use schedule::{LrSchedule, LrScheduleShape};

use crate::float::Float;

/// Global norm of all gradients, accumulated in f64 in the fixed order of the tensors.
pub fn global_norm<R: Float>(gradients: &[Vec<R>]) -> f64 {
    gradients
        .iter()
        .map(|tensor| tensor.iter().map(|g| g.to_f64() * g.to_f64()).sum::<f64>())
        .sum::<f64>()
        .sqrt()
}

/// The factor that scales a gradient of this norm down to `max`; 1 if it is below.
pub fn clip_factor(norm: f64, max: f64) -> f64 {
    (max / (norm + 1e-6)).min(1.0)
}
