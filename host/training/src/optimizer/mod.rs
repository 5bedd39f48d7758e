//! The trainer's half of the optimizer: clip factor, learning rate schedule, and the state that a checkpoint keeps. The
//! update itself is the backend's: [`clawhost_engine::TrainSession::step`].

mod schedule;
mod state;

pub use clawhost_config::LrScheduleShape;
pub use schedule::LrSchedule;
pub use state::{OptimizerState, update_ema};

/// The factor that scales a gradient of this norm down to `max`; 1 if it is below.
pub fn clip_factor(norm: f64, max: f64) -> f64 {
    (max / (norm + 1e-6)).min(1.0)
}
